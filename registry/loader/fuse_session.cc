#include "registry/loader/fuse_session.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/base/error.h"
#include "core/base/mount.h"

namespace dsec::registry {
namespace {

// Of protocol 7.40 (Linux 6.9), which the header that we compile with may not know.
constexpr std::uint64_t kHasResend = 1ull << 39;
constexpr int kNotifyResend = 7;
constexpr std::uint64_t kUniqueResend = 1ull << 63;

constexpr std::uint64_t kForever = 365ull * 24 * 3600;  // seconds: blobs never change
constexpr std::uint16_t kMostPages = 256;               // of a request: 1 MiB
constexpr std::uint16_t kMostInBackground = 128;

constexpr std::chrono::milliseconds kRestAfterError{10};

const fuse_in_header& header_of(const char* slot) { return *reinterpret_cast<const fuse_in_header*>(slot); }
template <typename Argument>
const Argument& argument_of(const char* slot) {
  return *reinterpret_cast<const Argument*>(slot + sizeof(fuse_in_header));
}

void fill(fuse_attr& attributes, std::uint64_t inode, std::uint64_t size) {
  attributes.ino = inode;
  attributes.size = size;
  attributes.blocks = (size + 511) / 512;
  attributes.mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0500 : S_IFREG | 0400;
  attributes.nlink = inode == FUSE_ROOT_ID ? 2 : 1;
  attributes.blksize = 4096;
}

}  // namespace

FuseSession::FuseSession(const UniqueFd& device, SharedState& state, FuseFiles& files)
    : device_(device), state_(state), files_(files) {}

FuseSession::~FuseSession() {
  for (std::thread& thread : threads_) thread.join();
}

void FuseSession::start(int threads, std::function<void()> gone, std::function<void(const std::string&)> log) {
  const std::vector<char*> left = state_.slots_under_way();
  // The kernel knows better than the slots what is not answered, where it can tell.
  if (state_.flags() & kHasResend) {
    for (char* slot : left) state_.free_slot(slot);
    resend();
  } else {
    for (char* slot : left) handle(slot);
  }
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, gone, log] { serve(gone, log); });
}

void FuseSession::resend() {
  fuse_out_header header{sizeof header, kNotifyResend, 0};
  if (::write(device_.get(), &header, sizeof header) < 0) throw system_error("ask the kernel for lost requests");
}

void FuseSession::serve(const std::function<void()>& gone, const std::function<void(const std::string&)>& log) {
  int told = 0;
  for (;;) {
    char* const slot = state_.take_slot();
    const ssize_t got = ::read(device_.get(), slot, SharedState::kSlotSize);
    if (got >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
      handle(slot);
      told = 0;
      continue;
    }
    const int error = got < 0 ? errno : 0;
    state_.free_slot(slot);
    // ENOENT: the request was given up while it was being read.
    if (error == EINTR || error == EAGAIN || error == ENOENT) continue;
    // Unmounted, or ended by way of /sys/fs/fuse/connections.
    if (error == ENODEV || error == ECONNABORTED || got == 0) return gone();
    // All else may pass, and whoever ends has everything fail that is mounted.
    if (log && error != told) log("cannot read what the kernel asks: " + errno_text(error));
    told = error;
    std::this_thread::sleep_for(kRestAfterError);
  }
}

// An answer that the kernel does not want any more (ENOENT) is an answer all the same.
void FuseSession::answer(char* slot, int error, std::span<const std::byte> body) {
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header + (error ? 0 : body.size()));
  header.error = -error;
  header.unique = header_of(slot).unique;
  const iovec parts[] = {{&header, sizeof header}, {const_cast<std::byte*>(body.data()), body.size()}};
  while (::writev(device_.get(), parts, error || body.empty() ? 1 : 2) < 0 && errno == EINTR) {
  }
  state_.free_slot(slot);
}

void FuseSession::handle(char* slot) {
  try {
    switch (header_of(slot).opcode) {
      case FUSE_INIT:
        return init(slot);
      case FUSE_LOOKUP:
        return lookup(slot);
      case FUSE_GETATTR:
        return attributes(slot);
      case FUSE_OPEN:
        return open(slot);
      case FUSE_READ:
        return read(slot);
      case FUSE_RELEASE:
        return release(slot);
      case FUSE_STATFS: {
        fuse_statfs_out out{};
        out.st.bsize = out.st.frsize = 4096;
        out.st.namelen = 255;
        return answer(slot, out);
      }
      // Inodes are kept for as long as the filesystem is.
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
        return state_.free_slot(slot);
      case FUSE_DESTROY:
        return answer(slot, 0, {});
      // Among them INTERRUPT: EROFS's reads are in the background, and its own readers can be killed.
      default:
        return answer(slot, ENOSYS, {});
    }
  } catch (const std::exception&) {
    answer(slot, EIO, {});
  }
}

void FuseSession::init(char* slot) {
  const auto& in = argument_of<fuse_init_in>(slot);
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  if (in.major > FUSE_KERNEL_VERSION) return answer(slot, out);  // the kernel asks again, in our version
  if (in.major < FUSE_KERNEL_VERSION || in.minor < 28) return answer(slot, EPROTO, {});
  std::uint64_t offered = in.flags;
  if (in.flags & FUSE_INIT_EXT) offered |= static_cast<std::uint64_t>(in.flags2) << 32;
  const std::uint64_t flags =
      offered & (FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_INIT_EXT | kHasResend);
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  out.max_readahead = in.max_readahead;
  out.flags = static_cast<std::uint32_t>(flags);
  out.flags2 = static_cast<std::uint32_t>(flags >> 32);
  out.max_background = kMostInBackground;
  out.congestion_threshold = kMostInBackground;
  out.max_write = 4096;
  out.max_pages = kMostPages;
  out.time_gran = 1;
  state_.set_flags(flags);
  answer(slot, out);
}

void FuseSession::lookup(char* slot) {
  const fuse_in_header& header = header_of(slot);
  const char* const begin = slot + sizeof header;
  const std::string name(begin, ::strnlen(begin, header.len - sizeof header));
  const std::optional<ServedName> blob = ServedName::parse(name);
  if (header.nodeid != FUSE_ROOT_ID || !blob) return answer(slot, ENOENT, {});
  const std::optional<std::uint64_t> size = files_.size(*blob);
  if (!size) return answer(slot, ENOENT, {});
  const std::optional<std::uint64_t> inode = state_.inode_of(*blob);
  if (!inode) return answer(slot, ENFILE, {});
  fuse_entry_out out{};
  out.nodeid = *inode;
  out.entry_valid = out.attr_valid = kForever;
  fill(out.attr, *inode, *size);
  answer(slot, out);
}

void FuseSession::attributes(char* slot) {
  const std::uint64_t inode = header_of(slot).nodeid;
  std::uint64_t size = 0;
  if (inode != FUSE_ROOT_ID) {
    const std::optional<ServedName> blob = state_.blob_of(inode);
    const auto known = blob ? files_.size(*blob) : std::nullopt;
    if (!known) return answer(slot, ESTALE, {});
    size = *known;
  }
  fuse_attr_out out{};
  out.attr_valid = kForever;
  fill(out.attr, inode, size);
  answer(slot, out);
}

void FuseSession::open(char* slot) {
  if ((argument_of<fuse_open_in>(slot).flags & O_ACCMODE) != O_RDONLY) return answer(slot, EROFS, {});
  const std::uint64_t inode = header_of(slot).nodeid;
  const std::optional<ServedName> blob = state_.blob_of(inode);
  fuse_open_out out{};
  out.fh = SharedState::handle_for(header_of(slot).unique & ~kUniqueResend, inode);
  out.open_flags = FOPEN_KEEP_CACHE;
  if (!state_.add_handle(out.fh)) return answer(slot, ENFILE, {});
  answer(slot, out);
  if (blob) files_.opened(*blob);
}

void FuseSession::release(char* slot) {
  const std::uint64_t inode = header_of(slot).nodeid;
  state_.drop_handle(argument_of<fuse_release_in>(slot).fh);
  answer(slot, 0, {});
  const std::optional<ServedName> blob = state_.blob_of(inode);
  if (blob && !state_.is_open(inode)) files_.closed(*blob);
}

void FuseSession::read(char* slot) {
  const auto& in = argument_of<fuse_read_in>(slot);
  const std::optional<ServedName> blob = state_.blob_of(header_of(slot).nodeid);
  if (!blob) return answer(slot, ESTALE, {});
  files_.read(*blob, in.offset, in.size,
              [this, slot](int error, std::span<const std::byte> bytes) { answer(slot, error, bytes); });
}

FuseMount mount_fuse() {
  return attempt("cannot make a filesystem for blobs that are loaded on demand", [] {
    UniqueFd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (!device) throw system_error("open '/dev/fuse'").hint("load the module: modprobe fuse");
    FsContext context("fuse");
    context.set("source", "dsec-loader");
    context.set("fd", std::to_string(device.get()));
    context.set("rootmode", "40000");
    context.set("user_id", "0");
    context.set("group_id", "0");
    // Whoever has a descriptor of it: a sandbox reads through the mount of its layer.
    context.set_flag("allow_other");
    context.create();
    UniqueFd root =
        context.mount(MountFlags::kReadOnly | MountFlags::kNoSuid | MountFlags::kNoDev | MountFlags::kNoExec);
    return FuseMount{std::move(device), std::move(root)};
  });
}

}  // namespace dsec::registry
