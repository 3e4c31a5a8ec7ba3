#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/error.h"

struct git_config;
struct git_index;
struct git_object;
struct git_odb;
struct git_odb_object;
struct git_oid;
struct git_packbuilder;
struct git_remote;
struct git_repository;

namespace dsec::layers {

struct GitFree {
  void operator()(git_config* config) const noexcept;
  void operator()(git_index* index) const noexcept;
  void operator()(git_object* object) const noexcept;
  void operator()(git_odb* odb) const noexcept;
  void operator()(git_odb_object* object) const noexcept;
  void operator()(git_packbuilder* builder) const noexcept;
  void operator()(git_remote* remote) const noexcept;
  void operator()(git_repository* repository) const noexcept;
};

/// Owns one handle of libgit2.
template <typename Handle>
using GitPtr = std::unique_ptr<Handle, GitFree>;

/// The id of a git object: 20 bytes of sha1.
struct ObjectId {
  static constexpr std::size_t kSize = 20;
  std::array<std::uint8_t, kSize> bytes{};

  static ObjectId of(const git_oid& id);
  /// Of kSize raw bytes.
  static ObjectId raw(const void* bytes);
  static bool valid_hex(std::string_view hex);
  /// Of 40 hex digits that valid_hex() accepted.
  static ObjectId from_hex(std::string_view hex);
  git_oid native() const;
  std::string hex() const;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy takes the comparison of arrays for one with 0
  auto operator<=>(const ObjectId&) const = default;
};

struct ObjectIdHash {
  std::size_t operator()(const ObjectId& id) const noexcept {
    std::size_t value;  // an id is a hash already
    std::memcpy(&value, id.bytes.data(), sizeof value);
    return value;
  }
};

/// Starts libgit2 once per process, cut off from every configuration file of this host and of its user: what comes out
/// of a repository may depend on the repository alone.
void start_libgit2();

/// "ATTEMPT: <libgit2's message>" of the last failed call of this thread.
Error libgit_error(std::string attempt);

/// Throws libgit_error() when `code` is negative.
void check_git(int code, std::string_view attempt);

}  // namespace dsec::layers
