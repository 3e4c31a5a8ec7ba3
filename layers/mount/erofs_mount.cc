#include "layers/mount/erofs_mount.h"

#include <fcntl.h>

#include <cerrno>
#include <vector>

#include "core/base/files.h"
#include "core/base/mount.h"
#include "layers/mount/loop_device.h"

namespace dsec::layers {
namespace {

constexpr std::uint64_t kAttributes = MountFlags::kReadOnly | MountFlags::kNoDev;
constexpr std::size_t kNameLimit = 255;  // what fsconfig(2) takes

// A name of an open file that the kernel takes whatever its path is like.
std::string name_for(const std::filesystem::path& path, const UniqueFd& file) {
  if (path.is_absolute() && path.native().size() <= kNameLimit) return path.native();
  return "/proc/self/fd/" + std::to_string(file.get());
}

Error cannot_mount(const FsContext& context, const std::string& what, int error_number) {
  Error error = context.error("mount erofs image " + what, error_number);
  if (error_number == EOPNOTSUPP) error.hint("this kernel cannot read its compression: zstd needs Linux 6.10");
  return error;
}

// Empty when EROFS needs a block device here.
UniqueFd mount_files(const std::string& meta, const std::optional<std::string>& data) {
  FsContext context("erofs");
  context.set("source", meta);
  if (data) context.set("device", *data);
  // Else contents would be cached twice, in EROFS and below it. Older kernels do not know the option, and do without.
  (void)context.try_set_flag("directio");
  if (const int number = context.try_create()) {
    if (number == ENOTBLK) return {};
    throw cannot_mount(context, quote(meta), number);
  }
  return context.mount(kAttributes);
}

UniqueFd mount_loops(const ErofsBlobs& blobs, const UniqueFd& meta, const UniqueFd& data) {
  FsContext context("erofs");
  context.set_flag("ro");  // else the kernel wants to write to the device
  const LoopDevice meta_device = attach_loop_device(meta.get(), blobs.meta.native());
  context.set("source", meta_device.path);
  LoopDevice data_device;
  if (blobs.data) {
    data_device = attach_loop_device(data.get(), blobs.data->native());
    context.set("device", data_device.path);
  }
  if (const int number = context.try_create())
    throw cannot_mount(context, quote(blobs.meta.native()) + " through " + meta_device.path, number);
  return context.mount(kAttributes);
}

}  // namespace

UniqueFd mount_erofs(const ErofsBlobs& blobs, ErofsBacking backing) {
  const UniqueFd meta = open_file(blobs.meta, O_RDONLY);
  const UniqueFd data = blobs.data ? open_file(*blobs.data, O_RDONLY) : UniqueFd();
  if (backing == ErofsBacking::Detect) {
    std::optional<std::string> data_name;
    if (blobs.data) data_name = name_for(*blobs.data, data);
    if (UniqueFd mount = mount_files(name_for(blobs.meta, meta), data_name)) return mount;
  }
  return mount_loops(blobs, meta, data);
}

}  // namespace dsec::layers
