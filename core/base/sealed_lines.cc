#include "core/base/sealed_lines.h"

#include <fcntl.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec {
namespace {

constexpr std::size_t kLongestLine = 16u << 20;
// `,"crc":"01234567"}`
constexpr std::size_t kTail = 18;
constexpr std::string_view kTailBegin = ",\"crc\":\"", kTailEnd = "\"}";

}  // namespace

std::string sealed_line(std::string_view body, std::uint32_t& checksum) {
  const std::string_view open = body.substr(0, body.size() - 1);
  checksum = crc32c(checksum, open.data(), open.size());
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", checksum);
  return std::string(open).append(kTailBegin).append(digits).append(kTailEnd).append("\n");
}

bool read_seal(std::string_view line, std::string_view& body, std::uint32_t& checksum) {
  if (line.size() <= kTail || line.size() > kLongestLine || !line.ends_with(kTailEnd)) return false;
  body = line.substr(0, line.size() - kTail);
  const std::string_view tail = line.substr(body.size());
  if (!tail.starts_with(kTailBegin)) return false;
  const char* const digits = tail.data() + kTailBegin.size();
  const auto [end, error] = std::from_chars(digits, digits + 8, checksum, 16);
  return error == std::errc() && end == digits + 8;
}

SealedLines::SealedLines(const std::filesystem::path& file) : file_(file), stream_(nullptr, &::fclose) {
  UniqueFd fd = open_file(file, O_RDONLY | O_NOFOLLOW);
  stream_.reset(::fdopen(fd.get(), "r"));
  if (!stream_) throw system_error("read " + quote(file.native()));
  static_cast<void>(fd.release());
}

SealedLines::~SealedLines() = default;

bool SealedLines::next() {
  // A file from elsewhere may have a line without end.
  line_.clear();
  for (int c; line_.size() <= kLongestLine && (c = ::getc_unlocked(stream_.get())) != EOF;) {
    line_.push_back(static_cast<char>(c));
    if (c == '\n') break;
  }
  const std::size_t got = line_.size();
  if (got == 0) {
    if (::ferror(stream_.get())) throw system_error("read " + quote(file_.native()));
    return false;
  }
  ++number_;
  text_ = line_;
  const bool whole = text_.ends_with('\n');
  if (whole) text_.remove_suffix(1);
  if (whole && check()) {
    good_bytes_ += got;
    return true;
  }
  // One without its newline is the last, even when its writer has gone on since.
  const bool torn = (!whole && got <= kLongestLine) || ::fgetc(stream_.get()) == EOF;
  if (!torn) damage_ = "line " + std::to_string(number_) + " of " + quote(file_.native()) + " is damaged";
  return false;
}

Json SealedLines::json() const { return parse_json(text_, file_.native() + ":" + std::to_string(number_)); }

bool SealedLines::check() {
  std::string_view body;
  std::uint32_t told = 0;
  if (!read_seal(text_, body, told) || crc32c(checksum_, body.data(), body.size()) != told) return false;
  checksum_ = told;
  return true;
}

}  // namespace dsec
