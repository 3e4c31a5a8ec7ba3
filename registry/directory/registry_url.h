#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/config.h"

namespace dsec::registry {

/// Where a registry is: a directory, or a directory of a 3FS mount.
struct RegistryAddress {
  enum class Kind { Directory, ThreeFs };
  Kind kind = Kind::Directory;
  std::filesystem::path root;  ///< absolute
  std::string name;            ///< as configured, or empty
  bool in_place = false;
  bool allow_any_fs = false;

  /// "file:///PATH" or "3fs:///MOUNT/PATH", with %XX for bytes that a URL cannot hold. Throws Error (Usage).
  static RegistryAddress parse(std::string_view url);
  static RegistryAddress of(const RegistryEntry& entry);
  std::string url() const;
  /// The name with the URL, or the URL: for messages.
  std::string shown() const;
};

}  // namespace dsec::registry
