#include <unordered_set>

#include "core/base/error.h"
#include "layers/erofs_read/erofs_image.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kDepthLimit = 1024;

// A directory whose entries are being visited.
struct Level {
  std::vector<ErofsDirEntry> entries;
  std::size_t next = 0;
  std::size_t path_length;  ///< of the directory's own path
};

class Walker {
 public:
  Walker(ErofsImage& image, const std::function<void(const std::string&, const ErofsInode&)>& visit)
      : image_(image), visit_(visit) {}

  void run() {
    const ErofsInode root = image_.root();
    visit_(path_, root);
    enter(root);
    while (!levels_.empty()) {
      Level& level = levels_.back();
      path_.resize(level.path_length);
      if (level.next == level.entries.size()) {
        levels_.pop_back();
        continue;
      }
      const ErofsDirEntry& entry = level.entries[level.next++];
      if (!path_.empty()) path_ += '/';
      path_ += entry.name;
      const ErofsInode inode = image_.inode(entry.nid);
      visit_(path_, inode);
      if (inode.is_directory()) enter(inode);
    }
  }

 private:
  void enter(const ErofsInode& directory) {
    if (!seen_.insert(directory.nid).second) throw fault("is in two places, or in itself");
    // Blocks of an honest image belong to one directory, so that all of them together are smaller than the image.
    directory_bytes_ += directory.size;
    if (directory_bytes_ > image_.meta_size()) throw fault("shares blocks with others");
    if (levels_.size() >= kDepthLimit) throw fault("is nested deeper than " + std::to_string(kDepthLimit));
    Level level{image_.list(directory), 0, path_.size()};
    for (std::size_t i = 1; i < level.entries.size(); ++i)
      if (!(level.entries[i - 1].name < level.entries[i].name)) throw fault("has its names out of order");
    levels_.push_back(std::move(level));
  }

  Error fault(const std::string& what) const {
    return failure("image is damaged: directory " + quote(path_) + " " + what);
  }

  ErofsImage& image_;
  const std::function<void(const std::string&, const ErofsInode&)>& visit_;
  std::string path_;
  std::vector<Level> levels_;
  std::unordered_set<std::uint64_t> seen_;
  std::uint64_t directory_bytes_ = 0;
};

EntryType type_of(const ErofsInode& inode) {
  switch (inode.mode & 0170000) {
    case 0040000:
      return EntryType::Directory;
    case 0120000:
      return EntryType::Symlink;
    case 0020000:
      return EntryType::CharDevice;
    case 0060000:
      return EntryType::BlockDevice;
    case 0010000:
      return EntryType::Fifo;
    case 0100000:
      return EntryType::File;
    default:
      throw failure("a socket cannot be in a layer");
  }
}

}  // namespace

void walk(ErofsImage& image, const std::function<void(const std::string&, const ErofsInode&)>& visit) {
  Walker(image, visit).run();
}

Entry to_entry(ErofsImage& image, const std::string& path, const ErofsInode& inode) {
  Entry entry{.path = path,
              .type = type_of(inode),
              .mode = inode.mode & 07777,
              .uid = inode.uid,
              .gid = inode.gid,
              .mtime = inode.mtime,
              .size = inode.is_file() ? inode.size : 0,
              .major = inode.major,
              .minor = inode.minor};
  if (inode.is_symlink()) entry.target = image.link_target(inode);
  entry.xattrs = image.xattrs(inode);
  return entry;
}

}  // namespace dsec::layers
