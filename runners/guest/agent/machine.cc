#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

// The sandbox's files: images below, the writable disk above, as on a host the mounts of layers and the upper
// directory.

namespace dsec::guest {
namespace {

constexpr unsigned long kReadOnlyMount = 1, kNoDev = 4;
constexpr char kOverlayRules[] = "redirect_dir=nofollow,metacopy=off,index=off";
constexpr uint32_t kMostImages = 400;  // more paths than one option of a mount has room for
uint32_t image_count;

// Status as the kernel fills it in, of which only owner, mode and time are of use here.
struct FileStatus {
  uint32_t mask, block_size;
  uint64_t attributes;
  uint32_t links, uid, gid;
  uint16_t mode, spare;
  uint64_t inode, size, blocks, attributes_mask;
  struct {
    int64_t seconds;
    uint32_t nanoseconds;
    int32_t reserved;
  } accessed, born, changed, modified;
  char rest[128];
};
static_assert(sizeof(FileStatus) == 256);

bool no_drive(const Text& wanted, Failure& failure) {
  return failure.set("find the drive", wanted.data, -ENODEV), false;
}

void image_path(uint32_t number, Buffer& path) {
  path.size = 0;
  path.append("/l/");
  path.append_number(number);
  path.append("", 1);
  --path.size;
}

// Its first device has the names; the others hold data.
bool mount_image(uint32_t number, const Strings& devices, Failure& failure) {
  Buffer path = {}, first = {}, other = {}, options = {};
  image_path(number, path);
  make_directory(path.data, 0755);
  bool ok = devices.count > 0;
  if (!ok) failure.set("mount an image without", "a drive", -EINVAL);
  const char* source = "";
  for (uint32_t i = 0; ok && i < devices.count; ++i) {
    const Text wanted = {devices.items[i], static_cast<uint32_t>(strlen(devices.items[i]))};
    const char* const found = find_drive(wanted, i ? other : first);
    if (!found) {
      ok = no_drive(wanted, failure);
    } else if (i == 0) {
      source = found;
      if (begins_with(found, "/dev/pmem")) options.append("dax=always");
    } else {
      options.append(options.size ? ",device=" : "device=");
      options.append(found);
    }
  }
  options.append("", 1);
  const long done = ok ? mount_at(source, path.data, "erofs", kReadOnlyMount | kNoDev, options.data) : 0;
  if (done < 0) failure.set("mount the image", devices.items[0], done);
  path.clear();
  first.clear();
  other.clear();
  options.clear();
  return ok && done >= 0;
}

// The merged root shows the attributes of the writable one, so they are those of the topmost image.
bool prepare_upper(const char* top, Failure& failure) {
  FileStatus status = {};
  long done = sys(__NR_statx, -100, top, 0, 0x7ff /* STATX_BASIC_STATS */, &status);
  const long made = sys(__NR_mkdirat, -100, "/disk/upper", 0755);
  if (done >= 0) done = make_directory("/disk/work", 0700);
  if (made == -EEXIST && done >= 0) return true;  // as it was left
  if (made < 0) done = made;
  if (done >= 0) done = sys(__NR_fchownat, -100, "/disk/upper", status.uid, status.gid, 0);
  if (done >= 0) done = sys(__NR_fchmodat, -100, "/disk/upper", status.mode & 07777);
  const struct {
    int64_t seconds, nanoseconds;
  } times[] = {{0, 0x3ffffffe /* UTIME_OMIT */}, {status.modified.seconds, status.modified.nanoseconds}};
  if (done >= 0) done = sys(__NR_utimensat, -100, "/disk/upper", times, 0);
  if (done < 0) return failure.set("prepare", "the writable layer", done), false;
  return true;
}

// Topmost first, as overlayfs wants them.
void append_lowers(Buffer& options) {
  Buffer path = {};
  options.append("lowerdir=");
  for (uint32_t i = image_count; i-- > 0;) {
    image_path(i, path);
    options.append(path.data, path.size);
    options.append(":");
  }
  options.append("/base");
  path.clear();
}

bool stack_images(uint32_t images, bool writable, Failure& failure) {
  Buffer options = {}, path = {};
  append_lowers(options);
  options.append(",");
  options.append(kOverlayRules);
  if (images) image_path(images - 1, path);
  bool ok = true;
  if (writable) {
    ok = prepare_upper(images ? path.data : "/base", failure);
    options.append(",upperdir=/disk/upper,workdir=/disk/work");
  }
  options.append("", 1);
  make_directory("/sb", 0755);
  const long done = ok ? mount_at("dsec", "/sb", "overlay", kNoDev | (writable ? 0 : kReadOnlyMount), options.data) : 0;
  if (done < 0) failure.set("stack", "the layers", done);
  options.clear();
  path.clear();
  return ok && done >= 0;
}

}  // namespace

bool mount_disk(const char* device, const char* target, Failure& failure) {
  Buffer found = {};
  const Text wanted = {device, static_cast<uint32_t>(strlen(device))};
  const char* const path = find_drive(wanted, found);
  if (!path) return found.clear(), no_drive(wanted, failure);
  make_directory(target, 0755);
  // Deleted files give their space back to the host.
  const long done = mount_at(path, target, "ext4", kNoDev, "discard");
  found.clear();
  if (done < 0) return failure.set("mount the disk", device, done), false;
  return true;
}

// It has drivers of its own, which only such a machine loads.
static bool prepare_pmem(Failure& failure) {
  static bool done;
  if (done) return true;
  done = true;
  if (agent.late_drives) find_new_devices();
  return load_modules("pmem", failure);
}

bool mount_drives(wire::Reader& reader, Failure& failure) {
  const uint32_t count = reader.u32();
  if (!reader.ok() || count > kMostImages) return failure.set("read", "the images", -EINVAL), false;
  make_directory("/l", 0755);
  for (uint32_t i = 0; i < count; ++i) {
    Strings devices = {};
    if (!devices.read(reader)) return failure.set("read", "the images", -EINVAL), false;
    if (devices.count && begins_with(devices.items[0], "/dev/pmem") && !prepare_pmem(failure)) return false;
    const bool mounted = mount_image(i, devices, failure);
    if (mounted) devices.clear();
    if (!mounted) return false;
  }
  const Text writable = reader.str();
  const bool has_disk = !(agent.flags & channel::kReadOnly);
  if (!reader.ok() || has_disk != (writable.size > 0)) return failure.set("read", "the writable disk", -EINVAL), false;
  if (has_disk) {
    if (!mount_disk(writable.data, "/disk", failure)) return false;
    const long disk = open_at(-100, "/disk", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (disk < 0) return failure.set("open", "the writable disk", disk), false;
    agent.disk = static_cast<int>(disk);
  }
  image_count = count;
  return true;
}

bool stack_drives(Failure& failure) { return stack_images(image_count, agent.disk >= 0, failure); }

// A file is made, and directories above it are: the bottom of the stack, so that nothing of it hides what a layer has.
bool make_mount_point(const char* path, Failure& failure) {
  Buffer made = {};
  made.append("/base");
  long done = 0;
  for (const char* at = path; done >= 0 && *at; ++at) {
    if (*at == '/' && at != path) {
      made.append("", 1);
      done = make_directory(made.data, 0755);
      --made.size;
    }
    made.append(at, 1);
  }
  made.append("", 1);
  if (done >= 0) done = open_at(-100, made.data, O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (done >= 0) close_fd(static_cast<int>(done));
  made.clear();
  if (done < 0) return failure.set("make the mount point", path, done), false;
  return true;
}

long open_lower() {
  Buffer options = {};
  // One layer alone is none.
  append_lowers(options);
  options.append(",");
  options.append(kOverlayRules);
  options.append("", 1);
  long done = make_directory("/lower", 0755);
  if (done == 0 && image_count) done = mount_at("dsec", "/lower", "overlay", kNoDev | kReadOnlyMount, options.data);
  options.clear();
  const long fd = done < 0 ? done : open_at(-100, image_count ? "/lower" : "/base", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Gone with the last who has it open.
  if (done >= 0 && image_count) sys(__NR_umount2, "/lower", 2 /* MNT_DETACH */);
  return fd;
}

}  // namespace dsec::guest
