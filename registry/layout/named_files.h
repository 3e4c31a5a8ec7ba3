#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dsec::registry {

/// The files of a registry by their names in layout.h, wherever they lie: a directory, a web server, a bucket.
class NamedFiles {
 public:
  virtual ~NamedFiles() = default;

  /// What a missing file means. On 3FS a client that looked for a name before it existed is told for 5 s that it does
  /// not exist; Expected waits that long for it. What its directory lists is waited for in any case.
  enum class Missing { Possible, Expected };
  /// The content of a file of at most `limit` bytes; empty when there is none. Throws Error.
  virtual std::optional<std::string> read_file(const std::string& name, std::uint64_t limit,
                                               Missing missing = Missing::Possible) const = 0;
  virtual bool has_file(const std::string& name, Missing missing = Missing::Possible) const = 0;
  /// Names of blobs, manifests and tags that begin with `prefix`, which reaches at least into the folder that names
  /// them
  /// ("manifests/sha256/ab", "tags/"); sorted. Throws Error where nothing can be listed;
  /// web servers have no names of blobs.
  virtual std::vector<std::string> names(const std::string& prefix) const = 0;
};

}  // namespace dsec::registry
