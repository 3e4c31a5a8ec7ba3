#include "layers/compose/contents.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"
#include "layers/mount/erofs_mount.h"

namespace dsec::layers {

int Contents::open(const StackedInode& file, const std::string& path) {
  if (open_file_ && open_image_ == file.image && open_path_ == path) return open_file_.get();
  UniqueFd& mount = mounts_[file.image];
  if (!mount) {
    if (::geteuid() != 0)
      throw failure("layer " + quote(tree_.layer_name(file.image)) +
                    " is compressed, and reading its files without root is not possible")
          .hint("run it with sudo, naming the same DSEC_HOME");
    mount = mount_erofs({store_.blob_path(tree_.manifest_of(file.image).blob(BlobRole::Meta).digest), {}});
  }
  // Every directory of the path is a real one of this image, and so is the file: nothing is followed.
  open_file_ = UniqueFd(::openat(mount.get(), path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!open_file_) throw system_error("open " + quote(path) + " of layer " + quote(tree_.layer_name(file.image)));
  open_image_ = file.image;
  open_path_ = path;
  return open_file_.get();
}

std::size_t Contents::read(const StackedInode& file, const std::string& path, std::uint64_t offset, char* buffer,
                           std::size_t size) {
  if (!file.inode.compressed()) return tree_.image(file.image).read(file.inode, offset, buffer, size);
  const int fd = open(file, path);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, buffer + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read " + quote(path) + " of layer " + quote(tree_.layer_name(file.image)));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void Contents::extents(const StackedInode& file, const std::function<void(const ErofsExtent&)>& visit) {
  if (!file.inode.compressed()) return tree_.image(file.image).extents(file.inode, visit);
  if (file.inode.size > 0) visit({0, file.inode.size, false});
}

}  // namespace dsec::layers
