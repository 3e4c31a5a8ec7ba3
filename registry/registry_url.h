#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/config.h"

namespace dsec::registry {

/// What is configured about a bucket; empty: as the environment says.
struct S3Settings {
  std::string endpoint;  ///< "https://objects.example:9000"
  std::string region;
  std::optional<bool> path_style;
};

/// Where a registry is: a directory, a directory of a 3FS mount, a path of an OCI registry or of a web server, or a
/// prefix of a bucket.
struct RegistryAddress {
  enum class Kind { Directory, ThreeFs, Oci, Http, S3 };
  Kind kind = Kind::Directory;
  std::filesystem::path root;  ///< of Directory and ThreeFs: absolute; otherwise empty
  std::string host;            ///< of Oci: "registry.example:5000"
  std::string repository;      ///< of Oci: "team/layers"
  std::string base;            ///< of Http: "https://host/path", without '/' at its end
  std::string bucket, prefix;  ///< of S3: the prefix without '/' at its ends; may be empty
  S3Settings s3;
  std::string name;  ///< as configured, or empty
  bool in_place = false;
  bool allow_any_fs = false;

  /// Whether it lies in a directory of this host.
  bool is_directory() const noexcept { return kind == Kind::Directory || kind == Kind::ThreeFs; }

  /// "file:///PATH" or "3fs:///MOUNT/PATH", with %XX for bytes that a URL cannot hold, "oci://HOST/REPOSITORY",
  /// "https://HOST/PATH" (or http:) or "s3://BUCKET/PREFIX". Throws Error (Usage).
  static RegistryAddress parse(std::string_view url);
  static RegistryAddress of(const RegistryEntry& entry);
  std::string url() const;
  /// The name with the URL, or the URL: for messages.
  std::string shown() const;
};
/// "directory", "3fs", "oci", "https" or "s3".
const char* to_string(RegistryAddress::Kind kind);

/// What people may write, for messages and help: "file:///PATH, 3fs:///MOUNT/PATH, oci://HOST/REPOSITORY, …".
extern const char* const kRegistryForms;
/// Those of them that can be published to.
extern const char* const kPublishForms;

}  // namespace dsec::registry
