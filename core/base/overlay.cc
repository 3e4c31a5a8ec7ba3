// Stacking an overlay. Since Linux 6.13 its layers can be given as descriptors of detached mounts; before, they need
// names, and mount(2) takes one page of options. So the older way attaches them under short names on a small tmpfs in
// a mount namespace of its own, mounts there, and keeps only a detached copy of the result.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <exception>
#include <thread>

#include "core/base/mount.h"

namespace dsec {
namespace {

constexpr std::size_t kLowerLimit = 500;  // OVL_MAX_STACK of fs/overlayfs/super.c

// Options that must not depend on how the kernel was built.
constexpr const char* kFixedOptions[][2] = {{"redirect_dir", "nofollow"}, {"metacopy", "off"}, {"index", "off"}};

enum class Known { No, Yes, NotYet };
std::atomic<Known> descriptors_work{Known::NotYet};

// Empty when this kernel cannot take the layers as descriptors.
UniqueFd by_descriptors(const OverlaySpec& spec) {
  FsContext context("overlay");
  context.set("source", spec.source);
  for (auto lower = spec.lowers.rbegin(); lower != spec.lowers.rend(); ++lower) {
    if (const int number = context.try_set_fd("lowerdir+", *lower)) {
      // EINVAL: a new overlayfs that knows no such option; EOPNOTSUPP: an old one that takes strings only (before 6.5).
      const bool unknown = number == EINVAL || number == EOPNOTSUPP;
      if (descriptors_work == Known::NotYet && unknown && lower == spec.lowers.rbegin()) {
        descriptors_work = Known::No;
        return {};
      }
      throw context.error("add a lower layer to the overlay", number);
    }
    descriptors_work = Known::Yes;
  }
  for (const auto& [key, value] : kFixedOptions) context.set(key, value);
  if (spec.writable) {
    for (const char* part : {"upper", "work"}) {
      const UniqueFd directory(::openat(*spec.writable, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!directory) throw system_error("open directory '" + std::string(part) + "' of the writable layer");
      context.set_fd((std::string(part) + "dir").c_str(), directory.get());
    }
    if (spec.skip_syncs) context.set_flag("volatile");
  } else {
    context.set_flag("ro");
  }
  context.create();
  return context.mount(spec.attributes);
}

// A directory on the working directory's tmpfs with `mount` attached.
void attach_here(int mount, const std::string& name) {
  if (::mkdir(name.c_str(), 0700) != 0) throw system_error("make directory " + quote(name));
  attach_mount(mount, AT_FDCWD, name);
}

UniqueFd by_names_in_this_namespace(const OverlaySpec& spec) {
  FsContext context("tmpfs");
  context.create();
  const UniqueFd room = context.mount(0);
  // Over the root, which hides nothing from this thread: the descriptor is its way in.
  attach_mount(room.get(), "/");
  if (::fchdir(room.get()) != 0) throw system_error("enter a new tmpfs");
  std::string options;
  for (const auto& [key, value] : kFixedOptions) options += std::string(key) + "=" + value + ",";
  options += "lowerdir=";
  for (std::size_t i = spec.lowers.size(); i-- > 0;) {
    attach_here(spec.lowers[i], std::to_string(i));
    options += std::to_string(i) + (i ? ":" : "");
  }
  if (spec.writable) {
    attach_here(*spec.writable, "w");
    options += std::string(",upperdir=w/upper,workdir=w/work") + (spec.skip_syncs ? ",volatile" : "");
  }
  if (::mkdir("m", 0700) != 0) throw system_error("make directory 'm'");
  if (::mount(spec.source.c_str(), "m", "overlay", spec.writable ? 0 : MS_RDONLY, options.c_str()) != 0)
    throw system_error("mount overlay with " + quote(options));
  UniqueFd mount = clone_mount(AT_FDCWD, "m");
  if (spec.attributes) set_mount_attributes(mount.get(), spec.attributes);
  return mount;
}

UniqueFd by_names(const OverlaySpec& spec) {
  UniqueFd mount;
  std::exception_ptr failed;
  std::thread([&] {
    try {
      if (::unshare(CLONE_FS | CLONE_NEWNS) != 0) throw system_error("make a mount namespace");
      set_propagation("/", Propagation::Private, Submounts::With);
      mount = by_names_in_this_namespace(spec);
    } catch (...) {
      failed = std::current_exception();
    }
  }).join();
  if (failed) std::rethrow_exception(failed);
  return mount;
}

}  // namespace

UniqueFd make_overlay(const OverlaySpec& spec) {
  return attempt("cannot stack " + std::to_string(spec.lowers.size()) + " layers", [&] {
    if (spec.lowers.size() > kLowerLimit)
      throw failure("overlayfs takes at most " + std::to_string(kLowerLimit))
          .hint("merge layers: an image imported with a larger --collapse-limit needs fewer");
    if (spec.way != OverlaySpec::Way::Names && descriptors_work != Known::No)
      if (UniqueFd mount = by_descriptors(spec)) return mount;
    if (spec.way == OverlaySpec::Way::Descriptors)
      throw failure("this kernel takes no layers as descriptors (Linux 6.13 does)");
    return by_names(spec);
  });
}

}  // namespace dsec
