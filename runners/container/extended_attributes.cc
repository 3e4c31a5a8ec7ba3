#include "runners/container/extended_attributes.h"

#include <linux/capability.h>
#include <linux/limits.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

constexpr char kCapability[] = "security.capability";

bool is_acl(std::string_view name) { return name == "system.posix_acl_access" || name == "system.posix_acl_default"; }
bool travels(std::string_view name) { return name.substr(0, 5) == "user." || name == kCapability || is_acl(name); }

enum class Direction { In, Out };

/// linux/posix_acl_xattr.h: u32 version, then {u16 tag, u16 permissions, u32 id}; little-endian. Ids count only for
/// named users (2) and groups (8). Empty when an id has no counterpart or the value is none.
std::optional<std::string> translate_acl(std::string value, const IdMap& ids, Direction direction) {
  constexpr std::size_t kHeader = 4, kEntry = 8;
  if (value.size() < kHeader || (value.size() - kHeader) % kEntry != 0) return std::nullopt;
  for (std::size_t at = kHeader; at < value.size(); at += kEntry) {
    std::uint16_t tag = 0;
    std::uint32_t id = 0;
    std::memcpy(&tag, &value[at], sizeof tag);
    std::memcpy(&id, &value[at + 4], sizeof id);
    if (tag != 2 && tag != 8) continue;
    if (direction == Direction::Out ? !ids.contains_outside(id) : id >= ids.count) return std::nullopt;
    id = direction == Direction::Out ? ids.to_inside(id) : ids.to_outside(id);
    std::memcpy(&value[at + 4], &id, sizeof id);
  }
  return value;
}

/// Capabilities of a file that were set in a user namespace carry the id of its root outside (revision 3, 24 bytes);
/// inside, they are plain (revision 2, 20 bytes).
std::string plain_capability(std::string value) {
  std::uint32_t magic = 0;
  if (value.size() != 24) return value;
  std::memcpy(&magic, value.data(), sizeof magic);
  if ((magic & VFS_CAP_REVISION_MASK) != VFS_CAP_REVISION_3) return value;
  magic = (magic & ~static_cast<std::uint32_t>(VFS_CAP_REVISION_MASK)) | VFS_CAP_REVISION_2;
  std::memcpy(value.data(), &magic, sizeof magic);
  value.resize(20);
  return value;
}

std::string get(int file, const char* name) {
  std::string value(XATTR_SIZE_MAX, '\0');
  const ssize_t size = ::fgetxattr(file, name, value.data(), value.size());
  value.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return value;
}

}  // namespace

ExtendedAttributes read_attributes(int file, const IdMap& ids) {
  std::string names(XATTR_LIST_MAX, '\0');
  const ssize_t size = ::flistxattr(file, names.data(), names.size());
  if (size <= 0) return {};
  names.resize(static_cast<std::size_t>(size));
  ExtendedAttributes result;
  for (std::size_t at = 0; at < names.size(); at += std::strlen(&names[at]) + 1) {
    const char* name = &names[at];
    if (!travels(name)) continue;
    std::string value = get(file, name);
    if (is_acl(name)) {
      if (auto translated = translate_acl(std::move(value), ids, Direction::Out))
        result.emplace_back(name, *translated);
    } else {
      result.emplace_back(
          name, std::string_view(name) == kCapability ? plain_capability(std::move(value)) : std::move(value));
    }
  }
  return result;
}

void write_attributes(int file, const ExtendedAttributes& attributes, const IdMap& ids) {
  for (const auto& [name, value] : attributes) {
    if (!travels(name)) continue;
    std::string wanted = value;
    if (is_acl(name)) {
      const auto translated = translate_acl(value, ids, Direction::In);
      if (!translated) throw failure("the ACL names users that the sandbox does not have");
      wanted = *translated;
    }
    if (::fsetxattr(file, name.c_str(), wanted.data(), wanted.size(), 0) != 0 && errno != EOPNOTSUPP)
      throw system_error("set the attribute " + quote(name));
  }
}

}  // namespace dsec::runners
