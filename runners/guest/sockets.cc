#include "runners/guest/sockets.h"

#include <asm/socket.h>
#include <linux/un.h>

#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr int kDontWait = 0x40, kNoSignal = 0x4000, kCloseOnExec = 0x40000000;  // MSG_*
constexpr int kScmRights = 1, kSolSocket = 1;

// struct msghdr and cmsghdr of the kernel's ABI, which it keeps in no exported header.
struct Message {
  void* name;
  int name_size;
  const iovec* parts;
  size_t part_count;
  void* control;
  size_t control_size;
  unsigned flags;
};
struct Control {
  size_t size;
  int level, type;
};

struct Credentials {
  int pid;
  unsigned uid, gid;
};

}  // namespace

long send_some(int fd, const void* data, size_t size) {
  return sys(__NR_sendto, fd, data, size, kDontWait | kNoSignal, nullptr, 0);
}

long send_parts(int fd, const iovec* parts, unsigned count) {
  const Message message = {nullptr, 0, parts, count, nullptr, 0, 0};
  return sys(__NR_sendmsg, fd, &message, kDontWait | kNoSignal);
}

bool send_with_descriptors(int fd, const wire::FrameHeader& header, const void* data, size_t size, const int* fds,
                           unsigned count) {
  struct {
    Control head;
    int fds[wire::kSpoolFiles + 1];
  } control = {};
  control.head = {sizeof(Control) + count * sizeof(int), kSolSocket, kScmRights};
  memcpy(control.fds, fds, count * sizeof(int));
  const iovec parts[] = {{const_cast<wire::FrameHeader*>(&header), sizeof header}, {const_cast<void*>(data), size}};
  const Message message = {nullptr, 0, parts, 2, count ? &control : nullptr, count ? control.head.size : 0, 0};
  return sys(__NR_sendmsg, fd, &message, kDontWait | kNoSignal) == static_cast<long>(sizeof header + size);
}

long send_whole(int fd, const wire::FrameHeader& header, const void* data, size_t size, const int* fds,
                unsigned count) {
  struct {
    Control head;
    int fds[kMaxDescriptors];
  } control = {};
  control.head = {sizeof(Control) + count * sizeof(int), kSolSocket, kScmRights};
  memcpy(control.fds, fds, count * sizeof(int));
  const iovec part = {const_cast<wire::FrameHeader*>(&header), sizeof header};
  const Message message = {nullptr, 0, &part, 1, count ? &control : nullptr, count ? control.head.size : 0, 0};
  const long begun = sys(__NR_sendmsg, fd, &message, kNoSignal);
  if (begun != static_cast<long>(sizeof header)) return begun < 0 ? begun : -EPIPE;
  for (size_t at = 0; at < size;) {
    const long sent = sys(__NR_sendto, fd, static_cast<const char*>(data) + at, size - at, kNoSignal, nullptr, 0);
    if (sent <= 0) return sent < 0 ? sent : -EPIPE;
    at += static_cast<size_t>(sent);
  }
  return 0;
}

bool receive_any(int fd, Buffer& frame) {
  size_t wanted = sizeof(wire::FrameHeader);
  char chunk[4096];
  while (frame.size < wanted) {
    const size_t missing = wanted - frame.size;
    const long got = read_fd(fd, chunk, missing < sizeof chunk ? missing : sizeof chunk);
    if (got <= 0) return false;
    frame.append(chunk, static_cast<size_t>(got));
    if (frame.size != sizeof(wire::FrameHeader)) continue;
    wire::FrameHeader header;
    memcpy(&header, frame.data, sizeof header);
    if (header.length > wire::kMaxFrame) return false;
    wanted += header.length;
  }
  return true;
}

bool receive_frame(int fd, wire::Type type, Buffer& frame, int* fds, unsigned& count) {
  struct {
    Control head;
    int fds[kMaxDescriptors];
  } control;
  count = 0;
  wire::FrameHeader header = {};
  size_t wanted = sizeof header;
  char chunk[4096];
  while (frame.size < wanted) {
    // Not past the frame: what follows belongs to the connection's ordinary reader.
    const size_t missing = wanted - frame.size;
    const iovec part = {chunk, missing < sizeof chunk ? missing : sizeof chunk};
    Message message = {nullptr, 0, &part, 1, &control, sizeof control, 0};
    const long got = sys(__NR_recvmsg, fd, &message, kCloseOnExec);
    if (got == -EINTR) continue;
    if (got <= 0) return false;
    if (message.control_size > sizeof(Control) && control.head.type == kScmRights) {
      const unsigned more = static_cast<unsigned>((control.head.size - sizeof(Control)) / sizeof(int));
      if (count + more > kMaxDescriptors) return false;
      memcpy(fds + count, control.fds, more * sizeof(int));
      count += more;
    }
    frame.append(chunk, static_cast<size_t>(got));
    if (wanted == sizeof header && frame.size == wanted) {
      memcpy(&header, frame.data, sizeof header);
      if (header.type != type || header.length > wire::kMaxFrame) return false;
      wanted += header.length;
      frame.reserve(wanted);
    }
  }
  return true;
}

long receive_some(int fd, void* data, size_t size, int* fds, unsigned room, unsigned& count) {
  struct {
    Control head;
    int fds[kMaxClientDescriptors];
  } control = {};
  count = 0;
  const iovec part = {data, size};
  Message message = {nullptr, 0, &part, 1, &control, sizeof(Control) + room * sizeof(int), 0};
  const long got = sys(__NR_recvmsg, fd, &message, kCloseOnExec);
  if (got <= 0 || message.control_size <= sizeof(Control) || control.head.type != kScmRights) return got;
  count = static_cast<unsigned>((control.head.size - sizeof(Control)) / sizeof(int));
  memcpy(fds, control.fds, count * sizeof(int));
  return got;
}

bool peer_is_allowed(int fd) {
  Credentials peer = {};
  int size = sizeof peer;
  if (sys(__NR_getsockopt, fd, kSolSocket, SO_PEERCRED, &peer, &size) < 0) return false;
  return peer.uid == 0 || peer.uid == static_cast<unsigned>(sys(__NR_geteuid));
}

long listen_in(int directory, const char* name) {
  sockaddr_un address = {};
  address.sun_family = 1;  // AF_UNIX
  memcpy(address.sun_path, name, strlen(name) + 1);
  long done = sys(__NR_fchdir, directory);
  if (done < 0) return done;
  const long fd = sys(__NR_socket, 1, 1 /* SOCK_STREAM */ | O_CLOEXEC | O_NONBLOCK, 0);
  if (fd < 0) return fd;
  // The mode is the file's from its first moment.
  sys(__NR_umask, 0177);
  done = sys(__NR_bind, fd, &address, sizeof address);
  sys(__NR_umask, 077);
  if (done >= 0) done = sys(__NR_listen, fd, 128);
  return done < 0 ? done : fd;
}

}  // namespace dsec::guest
