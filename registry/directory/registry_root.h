#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "registry/registry_url.h"

namespace dsec::registry {

/// The directory of a registry. Whatever lies there was written by others: only regular files strictly below the root
/// are opened, never through a symlink, never a FIFO or device.
class RegistryRoot {
 public:
  /// Throws Error when it is no registry, has a newer format, or (3fs:) does not lie on 3FS.
  static RegistryRoot open(const RegistryAddress& address);
  /// Makes one of a missing or empty directory first; any number of processes may do so at once.
  static RegistryRoot open_or_create(const RegistryAddress& address);

  const RegistryAddress& address() const noexcept { return address_; }
  /// Absolute path of something below the root, for messages and for the kernel.
  std::filesystem::path path(std::string_view name) const { return address_.root / name; }

  /// What a missing file means. On 3FS a client that looked for a name before it existed is told for 5 s that it does
  /// not exist; Expected waits that long for it.
  enum class Missing { Possible, Expected };
  /// Opens a regular file for reading; no descriptor when there is none. Throws Error for anything else of that name.
  UniqueFd open_file(const std::string& name, Missing missing = Missing::Possible) const;
  /// The content of a file of at most `limit` bytes.
  std::optional<std::string> read_file(const std::string& name, std::uint64_t limit,
                                       Missing missing = Missing::Possible) const;
  /// What there is under a name, symlinks not followed; empty when there is nothing.
  std::optional<struct stat> look(const std::string& name) const;
  /// Names in a directory, sorted; none when it is missing.
  std::vector<std::string> list(const std::string& directory) const;
  /// Unlinks a file; no error when it is gone.
  void remove(const std::string& name) const;

  /// Renames within one directory; false when there is nothing of that name.
  bool rename(const std::string& from, const std::string& to) const;

  /// The directory part of `name`, made when it is missing.
  UniqueFd make_parent(const std::string& name) const;

 private:
  RegistryRoot(RegistryAddress address, UniqueFd fd) : address_(std::move(address)), fd_(std::move(fd)) {}
  enum class Absent { Stop, Make };
  UniqueFd walk(const std::string& name, Absent absent) const;
  /// Opens the directory that `name` lies in; no descriptor when it is missing.
  UniqueFd parent_of(const std::string& name) const;
  void check_marker() const;

  RegistryAddress address_;
  UniqueFd fd_;
};

/// The last component of a name.
std::string last_part(const std::string& name);

/// fsync of a directory; filesystems that have no such thing (3FS) do not need it.
void sync_directory_fd(int fd);

}  // namespace dsec::registry
