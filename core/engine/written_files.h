#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/engine/branching.h"
#include "core/engine/local_engine.h"

namespace dsec::engine {

/// What was done to a file between two looks at a sandbox.
struct WrittenFile {
  Change change;
  std::uint64_t size = 0;  ///< bytes afterwards, of a regular file
};

/// Tells what a sandbox writes from one look to the next. Nothing is installed inside, and what is written is not read:
/// a look compares names with the layers, and sizes and times with those of the look before.
class WrittenFiles {
 public:
  /// `engine` must outlive it. What is written already is none of what the first look tells. Throws Error when the
  /// sandbox has no writable layer.
  WrittenFiles(LocalEngine& engine, std::string id);

  /// By path; a directory only where it came or went, not where something in it did. A paused sandbox is resumed.
  std::vector<WrittenFile> look();

 private:
  struct Seen {
    Change::Kind kind;
    struct stat info;
  };
  std::map<std::string, Seen> see() const;

  LocalEngine& engine_;
  const std::string id_;
  const UniqueFd layer_;
  std::map<std::string, Seen> seen_;
};

}  // namespace dsec::engine
