#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec {

/// Mount attributes (linux/mount.h), for FsContext::mount and set_mount_attributes.
struct MountFlags {
  static constexpr std::uint64_t kReadOnly = 0x1, kNoSuid = 0x2, kNoDev = 0x4, kNoExec = 0x8;
};

/// A filesystem on its way to being mounted (fsopen(2), Linux 5.2). What the kernel says about it is kept and becomes
/// part of errors. Not thread-safe.
class FsContext {
 public:
  /// Throws Error when the kernel does not have the filesystem type.
  explicit FsContext(const char* type);

  /// The kernel takes at most 255 bytes; longer values throw Error.
  void set(const char* key, const std::string& value);
  void set_flag(const char* key);
  void set_fd(const char* key, int fd);
  /// The same for callers with a way around: 0, or the errno; error() tells the rest.
  int try_set(const char* key, const std::string& value) noexcept;
  int try_set_flag(const char* key) noexcept;
  int try_set_fd(const char* key, int fd) noexcept;

  /// Makes the superblock (FSCONFIG_CMD_CREATE).
  void create();
  int try_create() noexcept;
  /// A detached mount of it with `attributes` (MountFlags).
  UniqueFd mount(std::uint64_t attributes) const;

  /// "ATTEMPT: <what the kernel logged>: Invalid argument (EINVAL)".
  Error error(const std::string& attempt, int error_number) const;
  int fd() const noexcept { return fd_.get(); }

 private:
  std::string type_;
  UniqueFd fd_;
};

/// Whether what is mounted below a directory comes along.
enum class Submounts { Without, With };

/// A detached copy of the mount at `path` (open_tree(2) with OPEN_TREE_CLONE); nobody sees it until it is attached. The
/// source must be in the calling thread's mount namespace. An empty path: the mount that `directory` refers to.
UniqueFd clone_mount(int directory, const std::string& path, Submounts submounts = Submounts::Without);
UniqueFd clone_mount(const std::filesystem::path& path, Submounts submounts = Submounts::Without);
/// The same without an exception: an fd, or an invalid one with errno set.
UniqueFd try_clone_mount(int directory, const char* path, Submounts submounts = Submounts::Without) noexcept;

/// Attaches a detached mount at `target` in the calling thread's mount namespace.
void attach_mount(int mount, const std::filesystem::path& target);
void attach_mount(int mount, int directory, const std::string& path);

/// mount_setattr(2) on a mount by fd. An id-mapped mount must be detached and not yet have been attached.
void set_mount_attributes(int mount, std::uint64_t set, std::uint64_t clear = 0);
void id_map_mount(int mount, int user_namespace);

enum class Propagation { Private, Slave, Shared };
/// Of the mount at `path` and, with submounts, everything below it.
void set_propagation(const std::filesystem::path& path, Propagation propagation,
                     Submounts submounts = Submounts::Without);

/// umount2(2). Lazy: it disappears at once and ends with its last user.
enum class UnmountMode { Strict, Lazy };
void unmount(const std::filesystem::path& target, UnmountMode mode = UnmountMode::Strict);

/// Whether `path` is the root of a mount (statx, Linux 5.8).
bool is_mount_root(const std::filesystem::path& path);

/// Owns one mount point and unmounts it lazily when destroyed. Keep several in a vector and pop from the back.
class Mount {
 public:
  /// Attaches a detached mount and owns the place; the descriptor is closed, since it would keep the mount busy.
  static Mount attach(UniqueFd mount, const std::filesystem::path& target);
  /// Takes over a mount that is there.
  static Mount adopt(std::filesystem::path target) { return Mount(std::move(target)); }
  Mount(Mount&& other) noexcept : target_(std::exchange(other.target_, {})) {}
  Mount& operator=(Mount&&) = delete;
  ~Mount();

  const std::filesystem::path& target() const noexcept { return target_; }
  /// Throws Error while something uses it; call before removing the directory.
  void unmount();
  /// Somebody else's record of the mount takes over.
  std::filesystem::path release() noexcept { return std::exchange(target_, {}); }

 private:
  explicit Mount(std::filesystem::path target) : target_(std::move(target)) {}
  std::filesystem::path target_;  ///< empty: nothing owned
};

/// What an overlay is stacked from. Every fd is a detached mount; the overlay makes private copies of them, and the
/// caller closes them afterwards.
struct OverlaySpec {
  /// Bottom to top, at least one, at most 500 (the kernel's limit).
  std::span<const int> lowers;
  /// A mount whose root holds the directories "upper" and "work"; absent: the overlay is read-only and needs two
  /// lowers.
  std::optional<int> writable;
  /// Skips syncs of the upper (Linux 5.10): for writable layers that nobody keeps after a crash.
  bool skip_syncs = false;
  std::uint64_t attributes = 0;    ///< MountFlags
  std::string source = "overlay";  ///< shown in /proc/self/mountinfo

  /// By descriptors where the kernel can (Linux 6.13), else by names in a mount namespace made for the purpose.
  enum class Way { Detect, Descriptors, Names };
  Way way = Way::Detect;
};

/// A detached overlay mount, always with redirect_dir=nofollow, metacopy=off, index=off: a layer must not be able to
/// pull in files from elsewhere by its xattrs.
UniqueFd make_overlay(const OverlaySpec& spec);

}  // namespace dsec
