#include "layers/git/checkout_filter.h"

#include <iconv.h>
#include <strings.h>

#include <algorithm>
#include <optional>

namespace dsec::layers {
namespace {

struct Conversions {
  LineEnds ends = LineEnds::Keep;
  bool ident = false;
  std::string encoding;  // empty: UTF-8, which is kept
};

enum class Text { Undefined, Binary, Text, Auto };

using Kind = GitAttribute::Kind;

Text text_attribute(const GitAttribute& value) {
  switch (value.kind) {
    case Kind::True:
      return Text::Text;
    case Kind::False:
      return Text::Binary;
    case Kind::String:
      return value.text == "auto" ? Text::Auto : value.text == "input" ? Text::Text : Text::Undefined;
    case Kind::Unspecified:
      break;
  }
  return Text::Undefined;
}

// text, crlf (its old name) and eol together, for core.autocrlf=false and a platform whose line end is LF.
LineEnds line_ends(const GitAttribute& text, const GitAttribute& crlf, const GitAttribute& eol) {
  Text kind = text_attribute(text);
  if (kind == Text::Undefined) kind = text_attribute(crlf);
  if (kind == Text::Binary || eol != GitAttribute{Kind::String, "crlf"}) return LineEnds::Keep;
  return kind == Text::Auto ? LineEnds::AutoCrlf : LineEnds::Crlf;
}

Conversions look_up(const GitAttributes& attributes, const std::string& path) {
  auto values = attributes.look_up(path);
  Conversions found;
  found.ends = line_ends(values["text"], values["crlf"], values["eol"]);
  found.ident = values["ident"].kind == Kind::True;
  if (values["working-tree-encoding"].kind == Kind::String) found.encoding = values["working-tree-encoding"].text;
  if (strcasecmp(found.encoding.c_str(), "UTF-8") == 0 || strcasecmp(found.encoding.c_str(), "UTF8") == 0)
    found.encoding.clear();
  return found;
}

struct ByteCounts {
  std::uint64_t lone_cr = 0, lone_lf = 0, crlf = 0, nul = 0, printable = 0, unprintable = 0;

  explicit ByteCounts(std::string_view bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto c = static_cast<unsigned char>(bytes[i]);
      if (c == '\r') {
        if (i + 1 < bytes.size() && bytes[i + 1] == '\n') {
          ++crlf, ++i;
        } else {
          ++lone_cr;
        }
      } else if (c == '\n') {
        ++lone_lf;
      } else if (c == 0x7f || (c < 0x20 && c != '\b' && c != '\t' && c != 0x1b && c != '\f')) {
        ++unprintable;
        if (c == 0) ++nul;
      } else {
        ++printable;
      }
    }
    if (!bytes.empty() && bytes.back() == 0x1a) --unprintable;  // the end-of-file mark of DOS
  }

  // What git takes for binary when text=auto: a bare CR, a NUL, or more than one unprintable byte in 128.
  bool binary() const { return lone_cr > 0 || nul > 0 || (printable >> 7) < unprintable; }
};

}  // namespace

bool to_crlf(std::string_view bytes, LineEnds ends, std::string& out) {
  if (ends == LineEnds::Keep || bytes.empty()) return false;
  const ByteCounts counts(bytes);
  if (counts.lone_lf == 0) return false;
  if (ends == LineEnds::AutoCrlf && (counts.crlf > 0 || counts.binary())) return false;
  out.clear();
  out.reserve(bytes.size() + counts.lone_lf);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r')) out += '\r';
    out += bytes[i];
  }
  return true;
}

bool expand_ident(std::string_view bytes, const std::string& blob_id, std::string& out) {
  std::string result;
  bool changed = false;
  while (true) {
    const auto dollar = bytes.find('$');
    if (dollar == std::string_view::npos) break;
    result += bytes.substr(0, dollar + 1);
    bytes.remove_prefix(dollar + 1);
    if (bytes.starts_with("Id$")) {
      bytes.remove_prefix(3);
    } else if (bytes.starts_with("Id:")) {
      const auto end = bytes.find('$', 3);
      if (end == std::string_view::npos) break;
      const std::string_view value = bytes.substr(3, end - 3);
      if (value.find('\n') != std::string_view::npos) continue;
      // A space inside the value is the mark of another version control system, whose keyword is left alone.
      const auto space = value.size() > 1 ? value.find(' ', 1) : std::string_view::npos;
      if (space != std::string_view::npos && space + 1 < value.size()) continue;
      bytes.remove_prefix(end + 1);
    } else {
      continue;
    }
    result += "Id: " + blob_id + " $";
    changed = true;
  }
  if (!changed) return false;
  result += bytes;
  out = std::move(result);
  return true;
}

bool encode(std::string_view bytes, std::string encoding, std::string& out) {
  if (bytes.empty()) return false;
  std::string result;
  if (strcasecmp(encoding.c_str(), "UTF-16LE-BOM") == 0 || strcasecmp(encoding.c_str(), "UTF-16BE-BOM") == 0) {
    encoding.resize(8);
    result = encoding[6] == 'L' || encoding[6] == 'l' ? "\xff\xfe" : "\xfe\xff";
  }
  const iconv_t converter = iconv_open(encoding.c_str(), "UTF-8");
  // NOLINTNEXTLINE: the error value of iconv_open is this cast
  if (converter == reinterpret_cast<iconv_t>(-1)) return false;
  std::string input(bytes);
  char* from = input.data();
  std::size_t left = input.size();
  bool good = true;
  while (good && left > 0) {
    char piece[4096];
    char* to = piece;
    std::size_t room = sizeof piece;
    if (iconv(converter, &from, &left, &to, &room) == static_cast<std::size_t>(-1) && errno != E2BIG) good = false;
    result.append(piece, sizeof piece - room);
  }
  iconv_close(converter);
  if (good) out = std::move(result);
  return good;
}

CheckoutFilter::CheckoutFilter(const GitObjects& objects, const GitTree& tree) {
  if (!tree.totals().attributes) return;
  constexpr std::string_view kName = ".gitattributes";
  tree.walk([&](const GitFile& file) {
    if (!file.path.ends_with(kName) || (file.kind != GitFileKind::Regular && file.kind != GitFileKind::Executable))
      return;
    std::string folder = file.path.substr(0, file.path.size() - kName.size());
    if (folder.ends_with('/'))
      folder.pop_back();
    else if (!folder.empty())
      return;
    const GitBlob blob = objects.blob(file.id);
    attributes_.add_file(folder, blob.bytes());
    lfs_ |= blob.bytes().find("filter=lfs") != std::string_view::npos;
  });
}

bool CheckoutFilter::is_lfs(const std::string& path) const {
  return attributes_.look_up(path)["filter"] == GitAttribute{Kind::String, "lfs"};
}

std::string_view CheckoutFilter::apply(const std::string& path, std::string_view stored, std::string& buffer) const {
  if (attributes_.empty()) return stored;
  const Conversions wanted = look_up(attributes_, path);
  std::string_view bytes = stored;
  std::string next;
  const auto take = [&](bool changed) {
    if (!changed) return;
    buffer.swap(next);
    bytes = buffer;
  };
  if (wanted.ident) take(expand_ident(bytes, GitObjects::hash_blob(bytes).hex(), next));
  take(to_crlf(bytes, wanted.ends, next));
  if (!wanted.encoding.empty()) take(encode(bytes, wanted.encoding, next));
  return bytes;
}

}  // namespace dsec::layers
