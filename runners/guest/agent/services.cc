#include <asm/signal.h>
#include <asm/socket.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/un.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr int kUnix = 1, kInternet = 2, kInternet6 = 10, kStream = 1;
constexpr char kKeeperSocket[] = "/run/keeper/control.sock";
constexpr int kHelperRoot = 3, kHelperLower = 4;

long reach_keeper() {
  sockaddr_un address = {};
  address.sun_family = kUnix;
  memcpy(address.sun_path, kKeeperSocket, sizeof kKeeperSocket);
  const long fd = sys(__NR_socket, kUnix, kStream | O_CLOEXEC, 0);
  if (fd < 0) return fd;
  const long done = sys(__NR_connect, fd, &address, sizeof address);
  if (done < 0) {
    close_fd(static_cast<int>(fd));
    return done;
  }
  sys(__NR_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK);
  return fd;
}

}  // namespace

// It never stands still with the sandbox.
long tell_keeper(wire::Type type, const Buffer& text) {
  const long fd = reach_keeper();
  if (fd < 0) return fd;
  const int keeper = static_cast<int>(fd);
  sys(__NR_fcntl, keeper, F_SETFL, O_RDWR);
  const wire::FrameHeader header = {static_cast<uint32_t>(text.size), type, 0};
  long done = send_whole(keeper, header, text.data, text.size, nullptr, 0);
  Buffer answer = {};
  if (done >= 0 && !receive_any(keeper, answer)) done = -EPIPE;
  if (done >= 0) {
    wire::FrameHeader said;
    memcpy(&said, answer.data, sizeof said);
    if (said.type != wire::Type::Done) done = -EPROTO;
  }
  answer.clear();
  close_fd(keeper);
  return done < 0 ? done : 0;
}

namespace {

// Where it is made is where it belongs for good.
long socket_of_sandbox(int family) {
  if (agent.network < 0) return sys(__NR_socket, family, kStream | O_CLOEXEC | O_NONBLOCK, 0);
  const long own = open_at(-100, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (own < 0) return own;
  const long joined = sys(__NR_setns, agent.network, CLONE_NEWNET);
  const long fd = joined < 0 ? joined : sys(__NR_socket, family, kStream | O_CLOEXEC | O_NONBLOCK, 0);
  sys(__NR_setns, own, CLONE_NEWNET);
  close_fd(static_cast<int>(own));
  return fd;
}

uint16_t big_endian(uint16_t value) { return static_cast<uint16_t>(value << 8 | value >> 8); }

long begin_connection(Stream& stream, int family) {
  const long fd = socket_of_sandbox(family);
  if (fd < 0) return fd;
  sockaddr_in four = {};
  four.sin_family = kInternet;
  four.sin_port = big_endian(stream.port);
  four.sin_addr.s_addr = 0x0100007f;
  sockaddr_in6 six = {};
  six.sin6_family = kInternet6;
  six.sin6_port = four.sin_port;
  six.sin6_addr.in6_u.u6_addr8[15] = 1;
  const bool old = family == kInternet;
  const long done = old ? sys(__NR_connect, fd, &four, sizeof four) : sys(__NR_connect, fd, &six, sizeof six);
  if (done < 0 && done != -EINPROGRESS) {
    close_fd(static_cast<int>(fd));
    return done;
  }
  stream.socket = {static_cast<int>(fd), 0};
  stream.connecting = true;
  return 0;
}

long try_six(Stream& stream) {
  stream.tried_six = true;
  return begin_connection(stream, kInternet6);
}

long connect_to_port(Stream& stream, wire::Reader& reader) {
  stream.port = reader.u16();
  if (!reader.ok()) return -EINVAL;
  const long done = begin_connection(stream, kInternet);
  return done == -ECONNREFUSED ? try_six(stream) : done;
}

// The sandbox's files are the helper's work: what they hold cannot harm who carries the channel.
long start_helper(Stream& stream, const char* const* arguments, int root, int lower = -1) {
  int sockets[2], errors[2];
  long done = sys(__NR_socketpair, kUnix, kStream | O_CLOEXEC, 0, sockets);
  if (done < 0) return done;
  done = sys(__NR_pipe2, errors, O_CLOEXEC);
  if (done < 0) return close_fd(sockets[0]), close_fd(sockets[1]), done;
  const long pid = sys(__NR_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    const long theirs = sys(__NR_fcntl, sockets[1], F_DUPFD_CLOEXEC, 16);
    const long said = sys(__NR_fcntl, errors[1], F_DUPFD_CLOEXEC, 16);
    const long top = sys(__NR_fcntl, root, F_DUPFD_CLOEXEC, 16);
    const long below = lower < 0 ? 0 : sys(__NR_fcntl, lower, F_DUPFD_CLOEXEC, 16);
    const long helper = sys(__NR_fcntl, agent.helper, F_DUPFD_CLOEXEC, 16);
    if (theirs >= 0 && said >= 0 && top >= 0 && below >= 0 && helper >= 0) {
      sys(__NR_dup3, theirs, 0, 0);
      sys(__NR_dup3, theirs, 1, 0);
      sys(__NR_dup3, said, 2, 0);
      sys(__NR_dup3, top, kHelperRoot, 0);
      if (lower >= 0) sys(__NR_dup3, below, kHelperLower, 0);
      const uint64_t none = 0;
      sys(__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &none, nullptr, sizeof none);
      static const char* const kNothing[] = {nullptr};
      sys(__NR_execveat, helper, "", arguments, kNothing, 0x1000 /* AT_EMPTY_PATH */);
    }
    exit_now(127);
  }
  close_fd(sockets[1]);
  close_fd(errors[1]);
  if (pid < 0) return close_fd(sockets[0]), close_fd(errors[0]), pid;
  stream.child = static_cast<int>(pid);
  stream.errors = errors[0];
  stream.socket = {sockets[0], 0};
  sys(__NR_fcntl, stream.socket.fd, F_SETFL, O_RDWR | O_NONBLOCK);
  return 0;
}

long start_copy(Stream& stream, const char* role, wire::Reader& reader) {
  const Text path = reader.str(), name = reader.str();
  const uint64_t owner = reader.u64();
  if (!reader.ok() || reader.left()) return -EINVAL;
  Buffer number = {};
  if (owner != channel::kNoOwner) number.append_number(static_cast<int64_t>(owner));
  number.append("", 1);
  const char* const arguments[] = {"dsec-guest", role, path.data, name.data, number.data, nullptr};
  const long done = start_helper(stream, arguments, agent.root);
  number.clear();
  return done;
}

// With the writable layer and what lies below it.
long start_comparison(Stream& stream, const char* const* arguments) {
  if (agent.disk < 0) return -EROFS;
  long lower = open_lower();
  if (lower < 0) return lower;
  const long upper = open_at(-100, "/disk/upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const long done =
      upper < 0 ? upper : start_helper(stream, arguments, static_cast<int>(upper), static_cast<int>(lower));
  close_fd(static_cast<int>(lower));
  if (upper >= 0) close_fd(static_cast<int>(upper));
  return done;
}

long start_diff(Stream& stream) {
  static constexpr const char* kArguments[] = {"dsec-guest", "diff", nullptr};
  return start_comparison(stream, kArguments);
}

long start_written(Stream& stream, wire::Reader& reader) {
  const uint32_t below = reader.u32();
  if (!reader.ok() || reader.left()) return -EINVAL;
  const char* const arguments[] = {"dsec-guest", "written", below ? "1" : "0", nullptr};
  return start_comparison(stream, arguments);
}

long start_watch(Stream& stream, wire::Reader& reader) {
  const uint32_t below = reader.u32();
  const Text path = reader.str();
  if (!reader.ok() || reader.left()) return -EINVAL;
  Buffer init = {};
  init.append("/proc/");
  init.append_number(agent.init);
  init.append("", 1);
  const char* const arguments[] = {"dsec-guest", "watch", below ? "1" : "0", path.data, init.data, nullptr};
  const long done = start_helper(stream, arguments, agent.root);
  init.clear();
  return done;
}

}  // namespace

long start_service(Stream& stream, wire::Reader& reader, const char*& what) {
  if (agent.state == channel::AgentState::Waiting) {
    what = "reach the sandbox, which is not there yet";
    return -ENOTCONN;
  }
  if (agent.state == channel::AgentState::Quiesced) {
    what = "serve while the machine stands still";
    return -EBUSY;
  }
  switch (stream.service) {
    case channel::Service::Keeper: {
      what = "reach the keeper";
      const long fd = reach_keeper();
      stream.socket.fd = fd < 0 ? -1 : static_cast<int>(fd);
      return fd < 0 ? fd : 0;
    }
    case channel::Service::CopyOut:
      what = "copy out of the sandbox";
      return start_copy(stream, "copy-out", reader);
    case channel::Service::CopyIn:
      what = "copy into the sandbox";
      return start_copy(stream, "copy-in", reader);
    case channel::Service::Connect:
      what = "connect to the port";
      return connect_to_port(stream, reader);
    case channel::Service::Diff:
      what = "look at the writable layer";
      return start_diff(stream);
    case channel::Service::Watch:
      what = "watch the files of the sandbox";
      return start_watch(stream, reader);
    case channel::Service::Egress:
      break;  // which only we open
    case channel::Service::Written:
      what = "read the writable layer";
      return start_written(stream, reader);
  }
  what = "serve a wish that this guest does not know";
  return -EOPNOTSUPP;
}

long finish_connection(Stream& stream) {
  constexpr int kSocketLevel = 1;
  int error = 0, size = sizeof error;
  const long asked = sys(__NR_getsockopt, stream.socket.fd, kSocketLevel, SO_ERROR, &error, &size);
  if (asked < 0) return asked;
  stream.connecting = false;
  if (error != ECONNREFUSED || stream.tried_six) return -error;
  watch(stream.socket, 0, nullptr);
  close_fd(stream.socket.fd);
  stream.socket.fd = -1;
  return try_six(stream);
}

}  // namespace dsec::guest
