#include "core/base/mount.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace dsec {
namespace {

constexpr std::size_t kValueLimit = 255;  // fsconfig(2): strings are copied with a limit of 256 bytes with the NUL
constexpr unsigned kRecursive = 0x8000;   // AT_RECURSIVE of linux/fcntl.h, which clashes with fcntl.h

static_assert(MountFlags::kReadOnly == MOUNT_ATTR_RDONLY && MountFlags::kNoSuid == MOUNT_ATTR_NOSUID &&
              MountFlags::kNoDev == MOUNT_ATTR_NODEV && MountFlags::kNoExec == MOUNT_ATTR_NOEXEC);

int result(int returned) noexcept { return returned == 0 ? 0 : errno; }

void set_attributes(int directory, const char* path, unsigned flags, mount_attr attributes, const std::string& what) {
  if (::mount_setattr(directory, path, flags, &attributes, sizeof attributes) != 0) throw system_error(what);
}

}  // namespace

FsContext::FsContext(const char* type) : type_(type), fd_(::fsopen(type, FSOPEN_CLOEXEC)) {
  if (fd_) return;
  const int number = errno;
  Error error = system_error("open filesystem type " + type_, number);
  if (number == ENODEV) error.hint("this kernel has no " + type_ + ": try 'modprobe " + type_ + "'");
  if (number == EPERM) error.hint("mounting needs root");
  throw error;
}

int FsContext::try_set(const char* key, const std::string& value) noexcept {
  return result(::fsconfig(fd_.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0));
}

int FsContext::try_set_flag(const char* key) noexcept {
  return result(::fsconfig(fd_.get(), FSCONFIG_SET_FLAG, key, nullptr, 0));
}

int FsContext::try_set_fd(const char* key, int fd) noexcept {
  return result(::fsconfig(fd_.get(), FSCONFIG_SET_FD, key, nullptr, fd));
}

int FsContext::try_create() noexcept { return result(::fsconfig(fd_.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0)); }

void FsContext::set(const char* key, const std::string& value) {
  if (value.size() > kValueLimit)
    throw failure("option " + std::string(key) + " of " + type_ +
                  " is longer than the 255 bytes the kernel takes: " + quote(value));
  if (const int number = try_set(key, value)) throw error("set " + type_ + " " + key + "=" + quote(value), number);
}

void FsContext::set_flag(const char* key) {
  if (const int number = try_set_flag(key)) throw error("set " + type_ + " " + key, number);
}

void FsContext::set_fd(const char* key, int fd) {
  if (const int number = try_set_fd(key, fd)) throw error("set " + type_ + " " + key + " by descriptor", number);
}

void FsContext::create() {
  if (const int number = try_create()) throw error("mount " + type_, number);
}

UniqueFd FsContext::mount(std::uint64_t attributes) const {
  UniqueFd mount(::fsmount(fd_.get(), FSMOUNT_CLOEXEC, static_cast<unsigned>(attributes)));
  if (!mount) throw error("mount " + type_, errno);
  return mount;
}

Error FsContext::error(const std::string& attempt, int error_number) const {
  std::string text = attempt;
  char line[1024];
  // Each read gives one message, "e overlay: No changes allowed in reconfigure"; ENODATA ends them.
  for (ssize_t length; (length = ::read(fd_.get(), line, sizeof line)) > 0;) {
    std::string_view message(line, static_cast<std::size_t>(length));
    while (!message.empty() && message.back() == '\n') message.remove_suffix(1);
    if (message.size() > 2 && message[1] == ' ') message.remove_prefix(2);
    text += ": " + std::string(message);
  }
  return system_error(std::move(text), error_number);
}

UniqueFd try_clone_mount(int directory, const char* path, Submounts submounts) noexcept {
  unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_NO_AUTOMOUNT;
  if (!*path) flags |= AT_EMPTY_PATH;
  if (submounts == Submounts::With) flags |= kRecursive;
  return UniqueFd(::open_tree(directory, path, flags));
}

UniqueFd clone_mount(int directory, const std::string& path, Submounts submounts) {
  UniqueFd mount = try_clone_mount(directory, path.c_str(), submounts);
  if (!mount) throw system_error("copy the mount at " + quote(path));
  return mount;
}

UniqueFd clone_mount(const std::filesystem::path& path, Submounts submounts) {
  return clone_mount(AT_FDCWD, path.native(), submounts);
}

void attach_mount(int mount, int directory, const std::string& path) {
  if (::move_mount(mount, "", directory, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0)
    throw system_error("attach a mount at " + quote(path));
}

void attach_mount(int mount, const std::filesystem::path& target) { attach_mount(mount, AT_FDCWD, target.native()); }

void set_mount_attributes(int mount, std::uint64_t set, std::uint64_t clear) {
  set_attributes(mount, "", AT_EMPTY_PATH, {.attr_set = set, .attr_clr = clear, .propagation = 0, .userns_fd = 0},
                 "change the attributes of a mount");
}

void id_map_mount(int mount, int user_namespace) {
  set_attributes(mount, "", AT_EMPTY_PATH,
                 {.attr_set = MOUNT_ATTR_IDMAP,
                  .attr_clr = 0,
                  .propagation = 0,
                  .userns_fd = static_cast<std::uint64_t>(user_namespace)},
                 "map the user ids of a mount");
}

void set_propagation(const std::filesystem::path& path, Propagation propagation, Submounts submounts) {
  const unsigned long kind = propagation == Propagation::Private ? MS_PRIVATE
                             : propagation == Propagation::Slave ? MS_SLAVE
                                                                 : MS_SHARED;
  set_attributes(AT_FDCWD, path.c_str(), submounts == Submounts::With ? kRecursive : 0,
                 {.attr_set = 0, .attr_clr = 0, .propagation = kind, .userns_fd = 0},
                 "change the propagation of the mount at " + quote(path.native()));
}

void unmount(const std::filesystem::path& target, UnmountMode mode) {
  if (::umount2(target.c_str(), UMOUNT_NOFOLLOW | (mode == UnmountMode::Lazy ? MNT_DETACH : 0)) != 0)
    throw system_error("unmount " + quote(target.native()));
}

bool is_mount_root(const std::filesystem::path& path) {
  struct statx facts {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &facts) != 0) {
    if (errno == ENOENT) return false;
    throw system_error("examine " + quote(path.native()));
  }
  return (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

Mount Mount::attach(UniqueFd mount, const std::filesystem::path& target) {
  attach_mount(mount.get(), target);
  return Mount(target);
}

Mount::~Mount() {
  if (!target_.empty()) ::umount2(target_.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH);
}

void Mount::unmount() {
  dsec::unmount(target_);
  target_.clear();
}

}  // namespace dsec
