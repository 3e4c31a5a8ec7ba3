#include "runners/isolation/disk_image.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"

namespace dsec::runners {
namespace {

namespace fs = std::filesystem;

/// mkfs.ext4 stands in directories that a user's PATH often lacks.
std::optional<std::string> find_mkfs() {
  for (const char* directory : {"/usr/sbin/", "/sbin/", "/usr/local/sbin/", "/usr/bin/"}) {
    const std::string path = std::string(directory) + "mkfs.ext4";
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

struct LoopDevice {
  UniqueFd fd;
  std::string path;
};

bool backs(const LoopDevice& loop, const struct stat& image) {
  loop_info64 info{};
  return loop.fd && ::ioctl(loop.fd.get(), LOOP_GET_STATUS64, &info) == 0 && info.lo_inode == image.st_ino &&
         info.lo_device == image.st_dev;
}

/// The device that has the file already. Two devices on one file would each have a cache of their own and destroy the
/// filesystem. With the device open, it cannot be taken away any more.
std::optional<LoopDevice> attached_loop(const struct stat& image) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/sys/block", gone)) {
    const std::string name = entry.path().filename();
    if (name.rfind("loop", 0) != 0 || !fs::exists(entry.path() / "loop/backing_file", gone)) continue;
    const std::string path = "/dev/" + name;
    LoopDevice loop{UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)), path};
    if (backs(loop, image)) return loop;
  }
  return std::nullopt;
}

LoopDevice new_loop(const fs::path& image) {
  const UniqueFd file = open_file(image, O_RDWR);
  const UniqueFd control = open_file("/dev/loop-control", O_RDWR);
  for (int tries = 0; tries < 64; ++tries) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) throw system_error("get a free loop device");
    LoopDevice loop{{}, "/dev/loop" + std::to_string(number)};
    loop.fd = open_file(loop.path, O_RDWR);
    loop_config config{};
    config.fd = static_cast<std::uint32_t>(file.get());
    config.block_size = 4096;
    // Direct: what the filesystem caches need not be cached again below it.
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    const std::string name = image.string();
    std::memcpy(config.info.lo_file_name, name.data(), std::min(name.size(), sizeof config.info.lo_file_name - 1));
    if (::ioctl(loop.fd.get(), LOOP_CONFIGURE, &config) == 0) return loop;
    if (errno != EBUSY) throw system_error("put " + quote(name) + " on " + loop.path);
  }
  throw failure("others take every free loop device first");
}

}  // namespace

void check_disk_images() {
  if (!find_mkfs()) throw failure("mkfs.ext4 is missing").hint("install the package e2fsprogs");
  if (::access("/dev/loop-control", R_OK | W_OK) != 0)
    throw system_error("open '/dev/loop-control'")
        .hint("load the loop module (modprobe loop), or keep DSEC_HOME on ext4 or xfs mounted with prjquota");
}

void make_disk_image(const fs::path& image, std::uint64_t bytes) {
  check_disk_images();
  try {
    const UniqueFd file = open_file(image, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
      throw system_error("make " + quote(image.string()) + ' ' + std::to_string(bytes) + " bytes long");
    // No journal: the image is of no use after a crash of the host, since a sandbox does not outlive its boot. Nothing
    // is kept back for root, and what is not yet written stays a hole.
    const CommandResult made =
        run_command({.argv = {*find_mkfs(), "-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal,^resize_inode",
                              "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", image.string()}});
    if (!made.status.ok()) throw failure("mkfs.ext4 ended with " + made.status.str() + ": " + made.err);
  } catch (...) {
    ::unlink(image.c_str());
    throw;
  }
}

void copy_disk_image(const fs::path& image, const fs::path& copy) {
  attempt("cannot copy the disk", [&] {
    const UniqueFd from = open_file(image, O_RDONLY | O_NOFOLLOW);
    const UniqueFd to = open_file(copy, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (::ioctl(to.get(), FICLONE, from.get()) == 0) return;
    struct stat info {};
    if (::fstat(from.get(), &info) != 0) throw system_error("stat it");
    if (::ftruncate(to.get(), info.st_size) != 0) throw system_error("make room for it");
    for (off_t at = 0; (at = ::lseek(from.get(), at, SEEK_DATA)) >= 0;) {
      const off_t end = ::lseek(from.get(), at, SEEK_HOLE);
      if (end < 0) throw system_error("find its holes");
      for (off_t out = at; at < end;) {
        const ssize_t done = ::copy_file_range(from.get(), &at, to.get(), &out, static_cast<std::size_t>(end - at), 0);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) throw system_error("copy from it");
        if (done == 0) throw failure("it has become shorter");
      }
    }
    if (errno != ENXIO) throw system_error("find its data");
  });
}

UniqueFd mount_disk_image(const fs::path& image, std::uint64_t mount_flags) {
  // Held while a device is looked for and attached, so that two processes do not attach one each.
  const FileLock lock(image, FileLock::Mode::Exclusive);
  struct stat info {};
  if (::fstat(lock.fd(), &info) != 0) throw system_error("stat " + quote(image.string()));
  std::optional<LoopDevice> loop = attached_loop(info);
  if (!loop) loop = new_loop(image);
  FsContext context("ext4");
  context.set("source", loop->path);
  // Deleted files give their space back to the host.
  context.set_flag("discard");
  context.create();
  return context.mount(mount_flags);
}

}  // namespace dsec::runners
