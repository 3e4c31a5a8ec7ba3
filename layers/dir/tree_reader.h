#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "layers/source.h"

namespace dsec::layers {

/// One name found in a tree on disk.
struct FoundEntry {
  int parent = -1;   ///< open folder that the name is in
  std::string name;  ///< in `parent`; "." for the root
  std::string path;  ///< relative to the root, "" for it
  struct stat info {};
};

/// Walks a tree that lies on disk, by descriptors and without following symlinks: a tree that is changed meanwhile can
/// make the walk fail, but never leave its root. Names come sorted as bytes, so that two walks of equal trees are
/// equal.
class TreeReader {
 public:
  /// Throws Error when `root` is no folder.
  explicit TreeReader(const std::filesystem::path& root);

  /// Calls `visit` for the root and everything below, parents first; a folder is gone into when it returns true.
  void walk(const std::function<bool(const FoundEntry&)>& visit) const;

  /// Extended attributes of an entry, all of them.
  std::map<std::string, std::string> xattrs(const FoundEntry& found) const;
  std::string link_target(const FoundEntry& found) const;
  /// Hands out a file's content piece by piece, holes as zeros. Throws Error when the file is not the one that was
  /// found, or changes while it is read.
  void content(const FoundEntry& found, const std::function<void(std::string_view)>& take) const;

 private:
  void walk_folder(const UniqueFd& folder, const std::string& prefix,
                   const std::function<bool(const FoundEntry&)>& visit) const;

  std::filesystem::path root_;
  UniqueFd fd_;
};

/// Type, mode, owner, time, size and device numbers; neither target nor xattrs. Sockets have no EntryType: ask first.
Entry entry_of(const FoundEntry& found);

/// The part of `xattrs` that layers may have: user.* (but not user.overlay.*), security.capability, POSIX ACLs.
std::map<std::string, std::string> portable_xattrs(std::map<std::string, std::string> xattrs);

/// Names that are links to an entry that came before.
class HardLinks {
 public:
  /// The path that the file was first seen under; empty when this is the first time.
  std::string first_path(const FoundEntry& found);

 private:
  std::map<std::pair<dev_t, ino_t>, std::string> seen_;
};

/// Remembers in 8 bytes an entry what a first walk saw, so that a second walk can tell what is no longer the same.
class WalkMemory {
 public:
  void note(const FoundEntry& found) { marks_.push_back(mark(found)); }
  void rewind() { next_ = 0; }
  /// Throws Error naming the entry.
  void expect(const FoundEntry& found);
  /// Throws Error when the first walk saw more.
  void expect_end() const;

 private:
  static std::uint64_t mark(const FoundEntry& found);
  std::vector<std::uint64_t> marks_;
  std::size_t next_ = 0;
};

/// Counts entries, bytes and path lengths against InputLimits; throws Error naming the entry that is too much.
class LimitCheck {
 public:
  explicit LimitCheck(const InputLimits& limits) : limits_(limits) {}
  void count(const Entry& entry);

 private:
  InputLimits limits_;
  std::uint64_t entries_ = 0, bytes_ = 0;
};

}  // namespace dsec::layers
