#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "runners/container/extended_attributes.h"
#include "runners/container/tar_stream.h"

namespace dsec::runners {

/// Writes files and trees as entries of one pax stream: hard links, sparse files, FIFOs and device nodes come as such,
/// sockets and what is mounted below do not come. Throws Error.
class TreePacker {
 public:
  TreePacker(const IdMap& ids, int fd, std::optional<std::uint32_t> owner = std::nullopt)
      : ids_(ids), owner_(owner), tar_(fd) {}

  /// `name` in the directory `parent` with all that is below, as `path`. `depth`: of how many directories it lies below
  /// the first; one at 0 that is not there is an error.
  void add(int parent, const std::string& name, const std::string& path, int depth);
  /// An open directory alone, with more attributes than its own.
  void add_folder(int directory, const std::string& path, const ExtendedAttributes& more = {});
  void finish() { tar_.finish(); }

 private:
  void describe(archive_entry* entry, const struct statx& info, const std::string& path) const;
  void add_regular(int file, const struct statx& info, archive_entry* entry);
  void add_directory(int directory, archive_entry* entry, const std::string& path, int depth);
  bool add_link(const struct statx& info, archive_entry* entry, const std::string& path);
  void add_attributes(int file, archive_entry* entry) const;

  const IdMap ids_;
  const std::optional<std::uint32_t> owner_;
  TarWriter tar_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> linked_;
  std::uint64_t mount_ = 0;
};

}  // namespace dsec::runners
