#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "layers/source.h"

namespace dsec::layers {

/// One inode of an EROFS image, decoded.
struct ErofsInode {
  std::uint64_t nid = 0;   ///< names it within the image; equal for hard links
  std::uint32_t mode = 0;  ///< type and permissions, as stat(2) has them
  std::uint32_t uid = 0, gid = 0, nlink = 0;
  std::uint64_t size = 0;  ///< bytes
  Timestamp mtime;
  std::uint32_t major = 0, minor = 0;  ///< of a device

  bool is_directory() const noexcept { return (mode & 0170000) == 0040000; }
  bool is_file() const noexcept { return (mode & 0170000) == 0100000; }
  bool is_symlink() const noexcept { return (mode & 0170000) == 0120000; }
  /// What deletes the name below in an overlay: a character device 0:0.
  bool is_whiteout() const noexcept { return (mode & 0170000) == 0020000 && major == 0 && minor == 0; }
  /// Contents are compressed: ErofsImage cannot read them.
  bool compressed() const noexcept { return layout == 1 || layout == 3; }

  std::uint8_t layout = 0;          ///< how the contents are stored
  std::uint32_t content = 0;        ///< block address, or chunk format
  std::uint64_t tail = 0;           ///< byte address of what follows inode and xattrs: inline tail or chunk indexes
  std::uint64_t xattr_address = 0;  ///< of the inline xattr area
  std::uint32_t xattr_size = 0;     ///< bytes; 0: the inode has none
};

struct ErofsDirEntry {
  std::string name;  ///< bytes, never empty, "." or ".."
  std::uint64_t nid;
};

/// A run of a file's bytes.
struct ErofsExtent {
  std::uint64_t offset, length;  ///< bytes, in the file
  bool hole;
};

/// A run of a file's bytes that lies in the data blob.
struct ErofsStored {
  std::uint64_t offset, length;  ///< bytes, in the file
  std::uint64_t address;         ///< in the blob
};

/// Reads an EROFS image without mounting it (format: the kernel's fs/erofs/erofs_fs.h). Trusts nothing in it: whatever
/// the bytes, a call returns or throws Error within time and memory bounded by the image's size. Not thread-safe.
class ErofsImage {
 public:
  /// `meta` holds the metadata (or everything), `data` the contents of the extra device; an invalid `data` is right for
  /// an image without one, and for reading no contents. `name` is for messages. Refuses features it does not know.
  ErofsImage(UniqueFd meta, UniqueFd data, std::string name);
  ErofsImage(ErofsImage&&) noexcept;
  ~ErofsImage();

  ErofsInode root();
  ErofsInode inode(std::uint64_t nid);
  /// The entries of a directory in stored order, which is bytewise.
  std::vector<ErofsDirEntry> list(const ErofsInode& directory);
  std::optional<ErofsInode> lookup(const ErofsInode& directory, std::string_view name);
  /// A path relative to the root ("" is the root); symlinks are not followed.
  std::optional<ErofsInode> find(std::string_view path);
  /// By full name ("user.x", "trusted.overlay.opaque").
  std::map<std::string, std::string> xattrs(const ErofsInode& inode);
  std::string link_target(const ErofsInode& symlink);

  /// Fills `buffer` from `offset` of a file; returns how many bytes, fewer only at the end of it. Throws Error for
  /// compressed contents.
  std::size_t read(const ErofsInode& file, std::uint64_t offset, char* buffer, std::size_t size);
  /// The parts of a file in order, holes told apart, neighbours of a kind joined; checks that each part lies within the
  /// image. Not for compressed contents.
  void extents(const ErofsInode& file, const std::function<void(const ErofsExtent&)>& visit);

  /// Which parts of a file lie in the data blob, in order; checks that each lies within what the image claims of it.
  /// Not for compressed contents.
  void stored(const ErofsInode& file, const std::function<void(const ErofsStored&)>& visit);

  /// Bytes of the metadata.
  std::uint64_t meta_size() const noexcept;
  /// Whether the image needs a second blob for contents, and how many bytes of it its device table claims.
  std::optional<std::uint64_t> data_device_size() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Visits every path of the image in pre-order, the root ("") first. Throws Error when directories form a loop or share
/// blocks, names are out of order, or nesting is deeper than 1024.
void walk(ErofsImage& image, const std::function<void(const std::string& path, const ErofsInode& inode)>& visit);

/// The inode at `path` as an entry in normal form: type, attributes, xattrs, symlink target.
Entry to_entry(ErofsImage& image, const std::string& path, const ErofsInode& inode);

}  // namespace dsec::layers
