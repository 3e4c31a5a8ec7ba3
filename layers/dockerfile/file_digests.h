#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/base/digest.h"

namespace dsec::layers::dockerfile {

/// Digests of files as they were read last, kept in a file between builds: one that has the same inode, size and times
/// is not read again. What changed less than two seconds before it was read is not remembered, since it could change
/// once more without showing it. Not thread-safe.
class FileDigests {
 public:
  /// Where they are kept; empty: nowhere. What cannot be read there counts as nothing.
  explicit FileDigests(std::filesystem::path file);

  std::optional<Digest> find(const std::string& path, const struct stat& info);
  void put(const std::string& path, const struct stat& info, const Digest& digest);
  /// Keeps what was found or put since the beginning, when that is something else than before. A cache that cannot be
  /// written is no error.
  void save() noexcept;

 private:
  struct Seen {
    std::string mark;  // device, inode, size and times
    Digest digest;
    bool used = false;
  };
  void load();

  std::filesystem::path file_;
  std::map<std::string, Seen> seen_;
  bool changed_ = false;
};

}  // namespace dsec::layers::dockerfile
