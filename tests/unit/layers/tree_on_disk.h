#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <filesystem>
#include <map>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/source.h"

namespace dsec::layers {

/// What a source sent, as it was sent; checks the order that TreeSink asks for.
class RecordedTree : public TreeSink {
 public:
  struct Item {
    Entry entry;
    std::string bytes;
  };
  void entry(const Entry& entry) override {
    finish();
    if (items.contains(entry.path)) throw failure("sent twice: " + entry.path);
    if (entry.type == EntryType::HardLink && !items.contains(entry.target))
      throw failure("link before target: " + entry.path);
    for (auto slash = entry.path.find('/'); slash != std::string::npos; slash = entry.path.find('/', slash + 1))
      if (const auto parent = items.find(entry.path.substr(0, slash));
          parent == items.end() || parent->second.entry.type != EntryType::Directory)
        throw failure("before its parent: " + entry.path);
    items[entry.path].entry = entry;
    last_ = entry.path;
  }
  void data(std::string_view bytes) override { items.at(last_).bytes += bytes; }
  void finish() const {
    if (const auto last = items.find(last_); last != items.end() && last->second.entry.type == EntryType::File)
      if (last->second.entry.size != last->second.bytes.size()) throw failure("content of another size: " + last_);
  }
  /// Everything in one string, for comparing two trees.
  std::string text() const {
    std::string out;
    for (const auto& [path, item] : items) {
      const Entry& e = item.entry;
      out += path + "|" + std::to_string(static_cast<int>(e.type)) + "|" + std::to_string(e.mode) + "|" +
             std::to_string(e.uid) + ":" + std::to_string(e.gid) + "|" + std::to_string(e.mtime.seconds) + "." +
             std::to_string(e.mtime.nanoseconds) + "|" + e.target + "|" + std::to_string(e.major) + "," +
             std::to_string(e.minor);
      for (const auto& [name, value] : e.xattrs) out += "|" + name + "=" + value;
      out += "|" + item.bytes + "\n";
    }
    return out;
  }

  std::map<std::string, Item> items;

 private:
  std::string last_;
};

/// Writes the files, folders and symlinks of a tree below `root`, with their modes and times: enough for git.
inline void write_to_disk(const RecordedTree& tree, const std::filesystem::path& root) {
  for (const auto& [path, item] : tree.items) {
    const std::filesystem::path place = path.empty() ? root : root / path;
    if (item.entry.type == EntryType::Directory) {
      std::filesystem::create_directories(place);
    } else if (item.entry.type == EntryType::Symlink) {
      std::filesystem::create_symlink(item.entry.target, place);
    } else if (item.entry.type == EntryType::File) {
      const UniqueFd fd = open_file(place, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
      write_all(fd.get(), item.bytes);
      ::fchmod(fd.get(), item.entry.mode);
    }
    const timespec times[2] = {{item.entry.mtime.seconds, 0}, {item.entry.mtime.seconds, 0}};
    ::utimensat(AT_FDCWD, place.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
}

}  // namespace dsec::layers
