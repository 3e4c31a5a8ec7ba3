#include "layers/archive/xattrs.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "layers/archive/tar_header.h"

namespace dsec::layers {
namespace {

// linux/posix_acl_xattr.h: version 2, then {tag, permissions, id} of 2 + 2 + 4 bytes, little-endian.
constexpr std::uint32_t kAclVersion = 2;
constexpr std::uint32_t kNoId = std::numeric_limits<std::uint32_t>::max();
enum AclTag : std::uint16_t { kUserObj = 1, kUser = 2, kGroupObj = 4, kGroup = 8, kMask = 16, kOther = 32 };

struct AclEntry {
  std::uint16_t tag, permissions;
  std::uint32_t id;
  auto key() const { return std::tie(tag, id); }
};

void put_le(std::string& out, std::uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

std::uint32_t get_le(std::string_view in, std::size_t at, int bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < bytes; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(in[at + i])) << (8 * i);
  return value;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find_first_of(separators);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::optional<AclEntry> acl_entry(std::string_view line) {
  const auto fields = split(line, ":");
  // "other::r--" also stands as "other:r--", and "mask" likewise; a fourth field is the number of a name.
  if (fields.size() < 2 || fields.size() > 4) return std::nullopt;
  const std::string_view kind = fields[0];
  const std::string_view who = fields.size() == 2 ? std::string_view() : fields[1];
  AclEntry entry{0, 0, kNoId};
  if (kind == "user" || kind == "u")
    entry.tag = who.empty() ? kUserObj : kUser;
  else if (kind == "group" || kind == "g")
    entry.tag = who.empty() ? kGroupObj : kGroup;
  else if (kind == "mask" || kind == "m")
    entry.tag = kMask;
  else if (kind == "other" || kind == "o")
    entry.tag = kOther;
  else
    return std::nullopt;
  if (entry.tag == kUser || entry.tag == kGroup) {
    // GNU tar writes names alone; that of root is the one that means the same everywhere.
    const auto id = who == "root" && fields.size() < 4 ? std::optional<std::uint64_t>(0)
                                                       : parse_decimal(fields.size() == 4 ? fields[3] : who);
    if (!id || *id >= kNoId) return std::nullopt;
    entry.id = static_cast<std::uint32_t>(*id);
  }
  const std::string_view permissions = fields.size() == 2 ? fields[1] : fields[2];
  for (const char c : permissions) {
    if (c == 'r')
      entry.permissions |= 4;
    else if (c == 'w')
      entry.permissions |= 2;
    else if (c == 'x')
      entry.permissions |= 1;
    else if (c != '-')
      return std::nullopt;
  }
  return entry;
}

// linux/capability.h: a magic number with the revision in its high byte, then what that revision holds.
bool capability_fits(std::string_view value) {
  constexpr std::array<std::size_t, 4> kSizes = {0, 12, 20, 24};
  if (value.size() < 4) return false;
  const std::uint32_t revision = get_le(value, 0, 4) >> 24;
  return revision > 0 && revision < kSizes.size() && value.size() == kSizes.at(revision);
}

/// Empty when it is no list of entries.
std::optional<std::vector<AclEntry>> acl_entries(std::string_view value) {
  if (value.size() < 4 || (value.size() - 4) % 8 != 0 || get_le(value, 0, 4) != kAclVersion) return std::nullopt;
  std::vector<AclEntry> entries;
  for (std::size_t at = 4; at < value.size(); at += 8)
    entries.push_back({static_cast<std::uint16_t>(get_le(value, at, 2)),
                       static_cast<std::uint16_t>(get_le(value, at + 2, 2)), get_le(value, at + 4, 4)});
  return entries;
}

/// As posix_acl_valid() of Linux: it refuses to set other ones, and to read a file that has one with an unknown tag.
bool acl_value_fits(std::string_view value) {
  const auto entries = acl_entries(value);
  if (!entries) return false;
  int next = kUserObj;  // the tag that must come, or that named ones come before
  bool named = false;
  for (const AclEntry& entry : *entries) {
    if (entry.permissions > 7) return false;
    switch (entry.tag) {
      case kUserObj:
        if (next != kUserObj) return false;
        next = kGroupObj;
        break;
      case kUser:
      case kGroup:
        if (next != (entry.tag == kUser ? kGroupObj : kMask) || entry.id == kNoId) return false;
        named = true;
        break;
      case kGroupObj:
        if (next != kGroupObj) return false;
        next = kMask;
        break;
      case kMask:
        if (next != kMask) return false;
        next = kOther;
        break;
      case kOther:
        if (next != kOther && (next != kMask || named)) return false;
        next = 0;
        break;
      default:
        return false;
    }
  }
  return next == 0 || entries->empty();
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

XattrFate fate_of_xattr(std::string_view name) {
  // With userxattr, overlayfs takes its orders from user.overlay.*.
  if (name.starts_with("user.")) return name.starts_with("user.overlay.") ? XattrFate::Drop : XattrFate::Keep;
  static constexpr std::array<std::string_view, 3> kKept = {"security.capability", "system.posix_acl_access",
                                                            "system.posix_acl_default"};
  return std::find(kKept.begin(), kKept.end(), name) != kKept.end() ? XattrFate::Keep : XattrFate::Drop;
}

bool xattr_suits(EntryType type, std::string_view name) {
  if (name.starts_with("user.")) return type == EntryType::File || type == EntryType::Directory;
  if (name == "system.posix_acl_default") return type == EntryType::Directory;
  return type != EntryType::Symlink;
}

bool acl_says_nothing(std::string_view name, std::string_view value) {
  if (!name.starts_with("system.posix_acl_") || !acl_value_fits(value)) return false;
  const auto entries = acl_entries(value);
  return entries->empty() || (name == "system.posix_acl_access" && entries->size() == 3);
}

std::optional<std::string> xattr_problem(std::string_view name, std::string_view value) {
  if (name.size() > 255) return "its name is longer than the 255 bytes that Linux allows";
  if (name == "user." || name.find('\0') != std::string_view::npos) return "its name is none";
  if (value.size() > 65535) return "its value is longer than the 65535 bytes that EROFS can hold";
  if (name.starts_with("system.posix_acl_") && !acl_value_fits(value))
    return "its value is no POSIX ACL that Linux takes";
  if (name == "security.capability" && !capability_fits(value)) return "its value is no file capability";
  return std::nullopt;
}

std::optional<std::string> xattrs_problem(const std::map<std::string, std::string>& xattrs) {
  // EROFS counts the bytes of an inode's attributes in units of 4 and in 16 bits, each with a header of 4 bytes;
  // mkfs.erofs does not look, and writes an image that cannot be read.
  constexpr std::size_t kInodeBytes = 12 + 4 * 65534;
  constexpr std::size_t kListBytes = 65536;  // XATTR_LIST_MAX
  std::size_t bytes = 12, list = 0;
  for (const auto& [name, value] : xattrs) {
    bytes += (4 + name.size() + value.size() + 3) / 4 * 4;
    list += name.size() + 1;
  }
  if (bytes > kInodeBytes)
    return "has extended attributes of " + std::to_string(bytes) + " bytes, more than the " +
           std::to_string(kInodeBytes) + " that EROFS can hold";
  if (list > kListBytes)
    return "has extended attributes whose names come to " + std::to_string(list) + " bytes, more than the " +
           std::to_string(kListBytes) + " that Linux can list";
  return std::nullopt;
}

std::optional<std::string> acl_from_text(std::string_view text) {
  std::vector<AclEntry> entries;
  for (std::string_view line : split(text, ",\n")) {
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const auto entry = acl_entry(line);
    if (!entry) return std::nullopt;
    entries.push_back(*entry);
  }
  if (entries.empty()) return std::nullopt;
  std::sort(entries.begin(), entries.end(), [](const AclEntry& a, const AclEntry& b) { return a.key() < b.key(); });
  std::string value;
  put_le(value, kAclVersion, 4);
  for (const AclEntry& entry : entries) {
    put_le(value, entry.tag, 2);
    put_le(value, entry.permissions, 2);
    put_le(value, entry.id, 4);
  }
  return value;
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kAlphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

}  // namespace dsec::layers
