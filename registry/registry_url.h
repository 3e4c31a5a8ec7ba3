#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/config.h"

namespace dsec::registry {

/// Where a registry is: a directory, a directory of a 3FS mount, or a path of an OCI registry.
struct RegistryAddress {
  enum class Kind { Directory, ThreeFs, Oci };
  Kind kind = Kind::Directory;
  std::filesystem::path root;  ///< absolute; empty for Oci
  std::string host;            ///< of Oci: "registry.example:5000"
  std::string repository;      ///< of Oci: "team/layers"
  std::string name;            ///< as configured, or empty
  bool in_place = false;
  bool allow_any_fs = false;

  /// "file:///PATH" or "3fs:///MOUNT/PATH", with %XX for bytes that a URL cannot hold, or "oci://HOST/REPOSITORY".
  /// Throws Error (Usage).
  static RegistryAddress parse(std::string_view url);
  static RegistryAddress of(const RegistryEntry& entry);
  std::string url() const;
  /// The name with the URL, or the URL: for messages.
  std::string shown() const;
};
/// What people may write, for messages and help: "file:///PATH, 3fs:///MOUNT/PATH or oci://HOST/REPOSITORY".
extern const char* const kRegistryForms;

}  // namespace dsec::registry
