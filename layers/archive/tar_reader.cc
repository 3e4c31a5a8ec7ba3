#include "layers/archive/tar_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_header.h"
#include "layers/archive/xattrs.h"

namespace dsec::layers {
namespace {

// Real ones have a few kilobytes; the bound keeps a hostile one from being taken into memory.
constexpr std::uint64_t kExtendedHeader = 1 << 20;
constexpr std::uint64_t kSparsePieces = 1 << 20;

std::uint64_t padded(std::uint64_t size) { return (size + kTarBlock - 1) / kTarBlock * kTarBlock; }

}  // namespace

struct TarReader::Pending {
  std::optional<std::string> path, link, sparse_name;  // of PAX records
  std::optional<std::string> long_name, long_link;     // of GNU's own headers
  std::optional<std::uint64_t> size, uid, gid, major, minor, real_size;
  std::optional<Timestamp> mtime;
  std::map<std::string, std::string> xattrs;
  std::optional<std::string> nameless_acl;  // in words that no number can be found for
  std::vector<std::string> dropped;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sparse_map;  // formats 0.0 and 0.1
  std::uint64_t sparse_major = 0, sparse_minor = 0;
  std::uint64_t bytes = 0;  // of extended headers
  bool sparse = false, any = false;

  /// Another extended header begins: of several in a row the last counts, as for GNU tar and for Go.
  void start_records(const Pending& global) {
    Pending fresh = global;
    fresh.long_name = std::move(long_name);
    fresh.long_link = std::move(long_link);
    fresh.bytes = bytes;
    fresh.any = any;
    *this = std::move(fresh);
  }

  /// What may hold for all entries that follow: one name, size or device number for all of them would only take them
  /// apart.
  Pending for_all() const {
    Pending kept;
    kept.uid = uid;
    kept.gid = gid;
    kept.mtime = mtime;
    kept.xattrs = xattrs;
    kept.nameless_acl = nameless_acl;
    return kept;
  }
};

TarReader::TarReader(ByteStream& stream, InputBudget& budget, Rules rules)
    : stream_(stream), budget_(budget), rules_(rules), global_(std::make_unique<Pending>()) {}

TarReader::~TarReader() = default;

void TarReader::damaged(std::string_view what) const {
  throw refusal(Refusal::Damaged, "the tar archive is damaged" + (last_.empty() ? "" : " after entry " + quote(last_)) +
                                      ": " + std::string(what));
}

std::size_t TarReader::take(char* out, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    if (piece_.empty()) {
      piece_ = stream_.next();
      if (piece_.empty()) break;
      budget_.unpacked(position_ + piece_.size());
    }
    const std::size_t part = std::min(size - done, piece_.size());
    std::memcpy(out + done, piece_.data(), part);
    piece_.remove_prefix(part);
    position_ += part;
    done += part;
  }
  return done;
}

void TarReader::skip(std::uint64_t size) {
  while (size > 0) {
    if (piece_.empty()) {
      const std::uint64_t unread = stream_.skip(size);
      position_ += unread;
      size -= unread;
      if (size == 0) return;
      piece_ = stream_.next();
      if (piece_.empty())
        throw refusal(Refusal::Truncated, "the archive ends within the content of entry " + quote(last_));
      budget_.unpacked(position_ + piece_.size());
    }
    const std::size_t part = std::min<std::uint64_t>(size, piece_.size());
    piece_.remove_prefix(part);
    position_ += part;
    size -= part;
  }
}

/// What is left of the entry before; false when the archive ends with it.
bool TarReader::skip_content() {
  const std::uint64_t padding = padded(to_skip_) - to_skip_;
  skip(std::exchange(to_skip_, 0));
  char padding_bytes[kTarBlock];
  if (take(padding_bytes, padding) == padding) return true;
  if (rules_ == Rules::Runtimes) return false;
  throw refusal(Refusal::Truncated, "the archive ends within the padding of entry " + quote(last_));
}

void TarReader::drain() {
  ended_ = true;
  do {
    trailing_data_ |= piece_.find_first_not_of('\0') != std::string_view::npos;
    position_ += piece_.size();
    piece_ = stream_.next();
    budget_.unpacked(position_ + piece_.size());
  } while (!piece_.empty());
}

bool TarReader::read_block(std::string& block) {
  block.resize(kTarBlock);
  const std::size_t got = take(block.data(), kTarBlock);
  if (got == 0) return false;
  if (got < kTarBlock) {
    if (position_ == got) throw refusal(Refusal::Damaged, "this is no tar archive");
    throw refusal(Refusal::Truncated,
                  "the archive ends within a header" + (last_.empty() ? "" : " after entry " + quote(last_)));
  }
  return true;
}

std::string TarReader::read_content(std::uint64_t size, std::string_view what) {
  if (size > kExtendedHeader) damaged(std::string(what) + " of " + format_size(size));
  std::string content(padded(size), '\0');
  if (take(content.data(), content.size()) < content.size())
    throw refusal(Refusal::Truncated, "the archive ends within " + std::string(what));
  content.resize(size);
  return content;
}

std::optional<TarMember> TarReader::next() {
  if (ended_) return std::nullopt;
  if (!skip_content()) {
    ended_ = true;
    return std::nullopt;
  }
  Pending pending = *global_;
  std::string block;
  const auto until_nul = [](const std::string& text) { return text.substr(0, text.find('\0')); };
  for (;;) {
    if (!read_block(block)) {
      if (pending.any) throw refusal(Refusal::Truncated, "the archive ends after an extended header");
      ended_ = true;
      return std::nullopt;
    }
    const TarHeader header(block);
    if (header.is_zero()) {
      if (pending.any) damaged("an extended header is followed by no entry");
      if (read_block(block) && !TarHeader(block).is_zero()) damaged("a block of zeros stands between entries");
      drain();
      return std::nullopt;
    }
    if (!header.checksum_fits()) {
      if (position_ == kTarBlock) throw refusal(Refusal::Damaged, "this is no tar archive");
      damaged("the checksum of a header is wrong");
    }
    const auto size = header.size();
    switch (header.type()) {
      case 'x':
      case 'X':  // Solaris
        if (!size || *size < 0) damaged("an extended header has no size");
        pending.bytes += static_cast<std::uint64_t>(*size);
        if (pending.bytes > kExtendedHeader) damaged("extended headers of " + format_size(pending.bytes));
        pending.start_records(*global_);
        apply_records(pending, read_content(*size, "an extended header"));
        pending.any = true;
        continue;
      case 'g':
        if (!size || *size < 0) damaged("a global header has no size");
        if (const std::string records = read_content(*size, "a global header"); rules_ == Rules::Posix) {
          apply_records(*global_, records);
          if (const auto problem = xattrs_problem(global_->xattrs)) damaged("a global header " + *problem);
          *global_ = global_->for_all();
          if (!pending.any) pending = *global_;
        }
        continue;
      case 'L':
      case 'K':
        if (!size || *size < 0) damaged("a long name has no size");
        (header.type() == 'L' ? pending.long_name : pending.long_link) = until_nul(read_content(*size, "a long name"));
        pending.any = true;
        continue;
      case 'V':  // the volume's name
        if (size && *size > 0) skip(padded(*size));
        continue;
      default:
        return finish(block, pending);
    }
  }
}

void TarReader::apply_records(Pending& pending, std::string_view bytes) {
  const auto records = parse_pax_records(bytes);
  if (!records) damaged("an extended header is malformed");
  const auto number = [&](std::string_view key, std::string_view value) {
    const auto parsed = parse_decimal(value);
    if (!parsed) damaged("the record " + quote(key) + " is no number: " + quote(value.substr(0, 40)));
    return *parsed;
  };
  const auto keep_xattr = [&](std::string name, std::string value) {
    if (fate_of_xattr(name) == XattrFate::Drop)
      pending.dropped.push_back(std::move(name));
    else
      pending.xattrs[std::move(name)] = std::move(value);
  };
  std::optional<std::uint64_t> sparse_offset;
  for (const auto& [key, value] : *records) {
    if (key.starts_with("SCHILY.xattr.")) {
      keep_xattr(std::string(key.substr(13)), std::string(value));
    } else if (key.starts_with("LIBARCHIVE.xattr.")) {
      auto name = percent_decode(key.substr(17));
      auto content = base64_decode(value);
      if (!name || !content) damaged("the record " + quote(key) + " is malformed");
      keep_xattr(std::move(*name), std::move(*content));
    } else if (key == "SCHILY.acl.access" || key == "SCHILY.acl.default") {
      if (value.empty()) continue;
      if (auto acl = acl_from_text(value))
        keep_xattr(key == "SCHILY.acl.access" ? "system.posix_acl_access" : "system.posix_acl_default",
                   std::move(*acl));
      else
        pending.nameless_acl = value;
    } else if (value.empty()) {
      // It takes back what was said before; the header's own field counts again.
      if (key == "path") pending.path.reset();
      if (key == "linkpath") pending.link.reset();
      if (key == "size") pending.size.reset();
      if (key == "uid") pending.uid.reset();
      if (key == "gid") pending.gid.reset();
      if (key == "mtime") pending.mtime.reset();
    } else if (key == "path") {
      pending.path = value;
    } else if (key == "linkpath") {
      pending.link = value;
    } else if (key == "size") {
      pending.size = number(key, value);
    } else if (key == "uid") {
      pending.uid = number(key, value);
    } else if (key == "gid") {
      pending.gid = number(key, value);
    } else if (key == "mtime") {
      pending.mtime = parse_pax_time(value);
      if (!pending.mtime) damaged("the time " + quote(value.substr(0, 40)) + " is malformed");
    } else if (key == "SCHILY.devmajor") {
      pending.major = number(key, value);
    } else if (key == "SCHILY.devminor") {
      pending.minor = number(key, value);
    } else if (key == "SCHILY.realsize" || key == "GNU.sparse.size" || key == "GNU.sparse.realsize") {
      pending.real_size = number(key, value);
      pending.sparse |= key.starts_with("GNU.");
    } else if (key == "GNU.sparse.name") {
      pending.sparse_name = value;
    } else if (key == "GNU.sparse.major") {
      pending.sparse_major = number(key, value);
      pending.sparse = true;
    } else if (key == "GNU.sparse.minor") {
      pending.sparse_minor = number(key, value);
    } else if (key == "GNU.sparse.offset") {
      sparse_offset = number(key, value);
    } else if (key == "GNU.sparse.numbytes") {
      if (!sparse_offset) damaged("a sparse map has a size without an offset");
      pending.sparse_map.emplace_back(*std::exchange(sparse_offset, std::nullopt), number(key, value));
    } else if (key == "GNU.sparse.map") {
      std::vector<std::uint64_t> numbers;
      for (std::string_view rest = value; !rest.empty();) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        numbers.push_back(number(key, rest.substr(0, comma)));
        rest.remove_prefix(std::min(comma + 1, rest.size()));
      }
      if (numbers.size() % 2) damaged("a sparse map has an offset without a size");
      for (std::size_t i = 0; i < numbers.size(); i += 2) pending.sparse_map.emplace_back(numbers[i], numbers[i + 1]);
    }
  }
}

/// A deletion marker of an image's layer, of whatever type. What aufs kept is none: files may be linked to it.
bool TarReader::deletes_by_name(std::string_view path) const {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return rules_ == Rules::Runtimes && name.starts_with(".wh.") && path.find(".wh..wh.") == std::string_view::npos;
}

TarMember TarReader::finish(const std::string& block, Pending& pending) {
  const TarHeader header(block);
  TarMember member;
  Entry& entry = member.entry;
  // PAX records say the same as GNU's long names, and better, when both are there.
  for (const std::optional<std::string>* said : {&pending.sparse_name, &pending.path, &pending.long_name})
    if (*said && entry.path.empty()) entry.path = **said;
  if (entry.path.empty()) entry.path = header.name();
  last_ = entry.path;
  const auto not_representable = [&](const std::string& why) {
    return refusal(Refusal::NotRepresentable, "entry " + quote(entry.path) + " " + why);
  };

  const auto mode = header.mode(), uid = header.uid(), gid = header.gid(), size = header.size(), mtime = header.mtime();
  if (!mode || !size || *size < 0 || (!pending.mtime && !mtime) || (!pending.uid && !uid) || (!pending.gid && !gid))
    damaged("a number in the header of " + quote(entry.path) + " is malformed");
  // Only these have content; other types may state a size (of a link's target) without having any.
  const bool has_content = std::string_view(
                               "\0"
                               "07SD",
                               5)
                               .find(header.type()) != std::string_view::npos;
  const std::uint64_t stored = has_content ? pending.size.value_or(static_cast<std::uint64_t>(*size)) : 0;
  if (stored > std::numeric_limits<std::int64_t>::max()) damaged("the size of " + quote(entry.path) + " is malformed");

  switch (header.type()) {
    case '\0':
    case '0':
    case '7':
    case 'S':
      // Archives older than ustar mark directories by the slash alone; in newer ones it is none that has content.
      entry.type =
          entry.path.ends_with('/') && (header.type() == '\0' || stored == 0) ? EntryType::Directory : EntryType::File;
      break;
    case '1':
      entry.type = EntryType::HardLink;
      break;
    case '2':
      entry.type = EntryType::Symlink;
      break;
    case '3':
      entry.type = EntryType::CharDevice;
      break;
    case '4':
      entry.type = EntryType::BlockDevice;
      break;
    case '5':
    case 'D':
      entry.type = EntryType::Directory;
      break;
    case '6':
      entry.type = EntryType::Fifo;
      break;
    default:
      throw not_representable("is of the unknown type " + quote(std::string(1, header.type())));
  }

  // Linux gives symlinks no other permissions, whatever an archive says of them.
  entry.mode = entry.type == EntryType::Symlink ? 0777 : static_cast<std::uint32_t>(*mode) & 07777;
  const auto id = [&](std::optional<std::uint64_t> extended, std::int64_t plain, const char* what) {
    if (!extended && plain < 0) throw not_representable("has the " + std::string(what) + " " + std::to_string(plain));
    const std::uint64_t value = extended ? *extended : static_cast<std::uint64_t>(plain);
    // The largest number of 32 bits is no id: it stands for "leave it as it is" in chown(2).
    if (value >= std::numeric_limits<std::uint32_t>::max())
      throw not_representable("has the " + std::string(what) + " " + std::to_string(value));
    return static_cast<std::uint32_t>(value);
  };
  entry.uid = id(pending.uid, uid.value_or(0), "owner");
  entry.gid = id(pending.gid, gid.value_or(0), "group");
  entry.mtime = pending.mtime ? *pending.mtime : Timestamp{*mtime, 0};

  to_skip_ = stored;

  if (entry.type == EntryType::Symlink || entry.type == EntryType::HardLink) {
    entry.target = pending.link ? *pending.link : pending.long_link ? *pending.long_link : header.link();
    if (entry.target.empty()) throw not_representable("is a link to an empty name");
    if (entry.target.find('\0') != std::string::npos) throw not_representable("is a link to a name with a NUL");
    if (entry.type == EntryType::Symlink && entry.target.size() > 4095)
      throw not_representable("is a symlink to a target longer than the 4095 bytes that Linux allows");
  }
  if (entry.type == EntryType::CharDevice || entry.type == EntryType::BlockDevice) {
    const auto major = header.major(), minor = header.minor();
    if ((!pending.major && !major) || (!pending.minor && !minor)) damaged("a device number is malformed");
    const std::uint64_t wide_major = pending.major ? *pending.major : static_cast<std::uint64_t>(*major);
    const std::uint64_t wide_minor = pending.minor ? *pending.minor : static_cast<std::uint64_t>(*minor);
    // The kernel's own bounds: 12 and 20 bits.
    if (wide_major >= 1u << 12 || wide_minor >= 1u << 20)
      throw not_representable("is device " + std::to_string(wide_major) + ":" + std::to_string(wide_minor) +
                              ", which Linux cannot number");
    entry.major = static_cast<std::uint32_t>(wide_major);
    entry.minor = static_cast<std::uint32_t>(wide_minor);
    if (entry.type == EntryType::CharDevice && entry.major == 0 && entry.minor == 0 && !deletes_by_name(entry.path))
      throw not_representable("is the character device 0:0, which overlayfs would take for a deletion");
  }

  if (entry.type == EntryType::HardLink) {  // the entry that it names has them
    pending.xattrs.clear();
    pending.nameless_acl.reset();
  }
  if (pending.nameless_acl)
    throw not_representable("has the ACL " + quote(pending.nameless_acl->substr(0, 200)) +
                            ", which names somebody without a number");
  std::erase_if(pending.xattrs, [](const auto& item) { return acl_says_nothing(item.first, item.second); });
  std::erase_if(pending.xattrs, [&](const auto& item) {
    if (xattr_suits(entry.type, item.first)) return false;
    pending.dropped.push_back(item.first);
    return true;
  });
  std::uint64_t metadata = entry.path.size() + entry.target.size();
  for (const auto& [name, value] : pending.xattrs) {
    metadata += name.size() + value.size();
    if (const auto problem = xattr_problem(name, value))
      throw not_representable("has an extended attribute " + quote(name) + " that cannot be stored: " + *problem);
  }
  if (const auto problem = xattrs_problem(pending.xattrs)) throw not_representable(*problem);
  entry.xattrs = std::move(pending.xattrs);
  member.dropped = std::move(pending.dropped);

  if (entry.type == EntryType::File) {
    if (header.type() == 'S' || pending.sparse) {
      read_sparse(block, pending, member, stored);
    } else {
      entry.size = stored;
      if (stored > 0) member.segments.push_back({0, position_, stored});
    }
  }
  std::uint64_t in_archive = 0;
  for (const Segment& segment : member.segments) in_archive += segment.size;
  attempt("entry " + quote(entry.path), [&] { budget_.entry(metadata, entry.size - in_archive); });
  return member;
}

void TarReader::read_sparse(const std::string& block, Pending& pending, TarMember& member, std::uint64_t stored) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> map = std::move(pending.sparse_map);
  std::uint64_t left = stored;  // of the content, behind a map that stands in it
  if (block[156] == 'S') {
    const TarHeader header(block);
    const auto first = header.gnu_sparse_map();
    const auto real_size = header.gnu_real_size();
    if (!first || !real_size || *real_size < 0) damaged("the sparse map of " + quote(last_) + " is malformed");
    map = *first;
    pending.real_size = static_cast<std::uint64_t>(*real_size);
    std::string more;
    for (bool continues = header.gnu_sparse_continues(); continues;) {
      if (!read_block(more)) throw refusal(Refusal::Truncated, "the archive ends within a sparse map");
      const auto pairs = TarHeader(more).extension_map();
      if (!pairs || map.size() > kSparsePieces) damaged("the sparse map of " + quote(last_) + " is malformed");
      map.insert(map.end(), pairs->begin(), pairs->end());
      continues = TarHeader(more).extension_continues();
    }
  } else if (pending.sparse_major == 1) {
    // Decimal numbers, one a line, in the first blocks of the content: how many pieces, then offset and size of each.
    std::string text, more;
    std::size_t at = 0;
    const auto number = [&]() -> std::uint64_t {
      std::size_t end;
      while ((end = text.find('\n', at)) == std::string::npos) {
        if (left < kTarBlock || text.size() - at > 32) damaged("the sparse map of " + quote(last_) + " is malformed");
        if (!read_block(more)) throw refusal(Refusal::Truncated, "the archive ends within a sparse map");
        text += more;
        left -= kTarBlock;
      }
      const auto value = parse_decimal(std::string_view(text).substr(at, end - at));
      if (!value) damaged("the sparse map of " + quote(last_) + " is malformed");
      at = end + 1;
      return *value;
    };
    const std::uint64_t count = number();
    if (count > kSparsePieces) damaged("the sparse map of " + quote(last_) + " is malformed");
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t offset = number();
      map.emplace_back(offset, number());
    }
    to_skip_ = left;
  } else if (pending.sparse_major != 0) {
    damaged("the sparse file " + quote(last_) + " is of an unknown form");
  }
  if (!pending.real_size) damaged("the sparse file " + quote(last_) + " has no size");

  member.entry.size = *pending.real_size;
  std::uint64_t stream = position_, end = 0;
  for (const auto& [at, size] : map) {
    if (at < end || size > left || at > member.entry.size || size > member.entry.size - at)
      damaged("the sparse map of " + quote(last_) + " does not fit its content");
    if (size > 0) member.segments.push_back({at, stream, size});
    end = at + size;
    stream += size;
    left -= size;
  }
}

}  // namespace dsec::layers
