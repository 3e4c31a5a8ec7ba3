#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "registry/layout/named_files.h"
#include "registry/registry_url.h"

namespace dsec::registry {

/// The directory of a registry. Whatever lies there was written by others: only regular files strictly below the root
/// are opened, never through a symlink, never a FIFO or device.
class RegistryRoot : public NamedFiles {
 public:
  /// Throws Error when it is no registry, has a newer format, or (3fs:) does not lie on 3FS.
  static RegistryRoot open(const RegistryAddress& address);
  /// Makes one of a missing or empty directory first; any number of processes may do so at once.
  static RegistryRoot open_or_create(const RegistryAddress& address);

  const RegistryAddress& address() const noexcept { return address_; }
  /// Absolute path of something below the root, for messages and for the kernel.
  std::filesystem::path path(std::string_view name) const { return address_.root / name; }

  /// Opens a regular file for reading; no descriptor when there is none. Throws Error for anything else of that name.
  UniqueFd open_file(const std::string& name, Missing missing = Missing::Possible) const;
  std::optional<std::string> read_file(const std::string& name, std::uint64_t limit,
                                       Missing missing = Missing::Possible) const override;
  bool has_file(const std::string& name, Missing missing = Missing::Possible) const override {
    return static_cast<bool>(open_file(name, missing));
  }
  std::vector<std::string> names(const std::string& prefix) const override;
  /// What there is under a name, symlinks not followed: its mode, size and time of modification. Empty when there is
  /// nothing.
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
  bool is_listed(const std::string& name) const;
  std::optional<struct stat> look_once(const std::string& name) const;
  /// What `find` finds of `name`: on 3FS it is asked again for as long as the client may remember wrongly.
  template <typename Find>
  auto find_patiently(const std::string& name, Missing missing, Find&& find) const;
  void add_names(const std::string& directory, std::size_t depth, const std::string& prefix,
                 std::vector<std::string>& found) const;

  RegistryAddress address_;
  UniqueFd fd_;
};

/// fsync of a directory; filesystems that have no such thing (3FS) do not need it.
void sync_directory_fd(int fd);

}  // namespace dsec::registry
