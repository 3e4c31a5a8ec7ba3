#include <asm/signal.h>
#include <asm/socket.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/resource.h>
#include <linux/tcp.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/agent/egress.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

// The sandbox's network namespace is made as that of a container with a policy, by dsec-guest: whatever is sent comes
// to the sockets that are opened there. What is a gateway's work on a host is dsec's here: the agent tells it whom each
// connection is for, and carries the bytes.

namespace dsec::guest {
namespace {

constexpr int kUnix = 1, kStream = 1, kHelperNetwork = 3, kTcpLevel = 6, kSocketLevel = 1;
constexpr unsigned kAcceptsInTurn = 32;
// Frames of new connections would hold up others, and grow with them.
constexpr size_t kMostControl = 64u << 10;
constexpr uint64_t kDescriptors = 8192;

bool fail(Failure& failure, const char* step, const char* object, long error) {
  return failure.set(step, object, error), false;
}

// Runs the helper in its role. What it says of a failure stays in agent.reason.
long run_helper(int socket, Failure& failure) {
  int errors[2];
  const long piped = sys(__NR_pipe2, errors, O_CLOEXEC);
  if (piped < 0) return failure.set("make a pipe", "", piped), piped;
  const long pid = sys(__NR_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    const long theirs = sys(__NR_fcntl, socket, F_DUPFD_CLOEXEC, 16);
    const long said = sys(__NR_fcntl, errors[1], F_DUPFD_CLOEXEC, 16);
    const long network = sys(__NR_fcntl, agent.network, F_DUPFD_CLOEXEC, 16);
    const long helper = sys(__NR_fcntl, agent.helper, F_DUPFD_CLOEXEC, 16);
    sys(__NR_dup3, theirs, 0, 0);
    sys(__NR_dup3, theirs, 1, 0);
    sys(__NR_dup3, said, 2, 0);
    sys(__NR_dup3, network, kHelperNetwork, 0);
    const uint64_t none = 0;
    sys(__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &none, nullptr, sizeof none);
    static const char* const kArguments[] = {"dsec-guest", "egress", nullptr};
    static const char* const kNothing[] = {nullptr};
    sys(__NR_execveat, helper, "", kArguments, kNothing, 0x1000 /* AT_EMPTY_PATH */);
    exit_now(127);
  }
  close_fd(errors[1]);
  int status = pid < 0 ? static_cast<int>(pid) : 0;
  if (pid > 0) sys(__NR_wait4, pid, &status, 0, nullptr);
  char said[1024];
  const long size = read_fd(errors[0], said, sizeof said);
  close_fd(errors[0]);
  if (status == 0) return 0;
  agent.reason.size = 0;
  for (long i = 0; i < size; ++i) agent.reason.append(said[i] == '\n' ? ": " : &said[i], said[i] == '\n' ? 2 : 1);
  agent.reason.append("", 1);
  failure.set("open the sandbox's way out:", agent.reason.data, 0);
  return -EIO;
}

void take_connection(int fd) {
  alignas(8) char address[128] = {};
  int size = sizeof address;
  Endpoint to = {};
  if (sys(__NR_getsockname, fd, address, &size) < 0 || !endpoint_of(address, to)) {
    close_fd(fd);
    return;
  }
  const int on = 1;
  sys(__NR_setsockopt, fd, kTcpLevel, TCP_NODELAY, &on, sizeof on);
  const uint32_t number = next_outward_number();
  Buffer frame = {};
  append_open(frame, channel::Protocol::Tcp, to);
  send_control(channel::Type::Open, number, frame.data, frame.size);
  frame.clear();
  add_connection(number, fd);
}

}  // namespace

uint32_t next_outward_number() {
  // After two thousand million of them nobody remembers the first.
  agent.last_outward = (agent.last_outward + 1) | channel::kOpenedByGuest;
  return agent.last_outward;
}

void append_open(Buffer& frame, channel::Protocol protocol, const Endpoint& to) {
  wire::Writer<Buffer>(frame)
      .u16(static_cast<uint16_t>(channel::Service::Egress))
      .u16(static_cast<uint16_t>(protocol))
      .u16(to.port)
      .str(to.address, sizeof to.address);
}

bool endpoint_of(const char* address, Endpoint& endpoint) {
  uint16_t family = 0, port = 0;
  memcpy(&family, address, sizeof family);
  memcpy(&port, address + 2, sizeof port);
  endpoint.port = static_cast<uint16_t>(port << 8 | port >> 8);
  if (family == kInternet6) return memcpy(endpoint.address, address + 8, 16), true;
  if (family != kInternet) return false;
  memset(endpoint.address, 0, 10);
  memset(endpoint.address + 10, 0xff, 2);
  return memcpy(endpoint.address + 12, address + 4, 4), true;
}

bool open_egress(Failure& failure) {
  agent.egress = {};
  if (agent.network < 0) return fail(failure, "hold to a policy", "a sandbox that has the machine's network", -EINVAL);
  if (!load_modules("egress", failure)) return false;
  const rlimit64 limit = {kDescriptors, kDescriptors};
  long done = sys(__NR_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
  if (done < 0) return fail(failure, "raise the limit of", "descriptors", done);
  int ends[2];
  done = sys(__NR_socketpair, kUnix, kStream | O_CLOEXEC, 0, ends);
  if (done < 0) return fail(failure, "make a socket pair", "", done);
  done = run_helper(ends[1], failure);
  close_fd(ends[1]);
  int fds[kEgressSockets];
  unsigned count = 0;
  char byte = 0;
  if (done >= 0) receive_some(ends[0], &byte, 1, fds, kEgressSockets, count);
  close_fd(ends[0]);
  if (done < 0) return false;
  if (count != kEgressSockets) return fail(failure, "get the sockets of", "the sandbox's way out", -EPROTO);
  agent.egress.listener = {fds[0], 0};
  agent.egress.datagrams = {fds[1], 0};
  agent.egress.raw4 = fds[2];
  agent.egress.raw6 = fds[3];
  return true;
}

bool may_accept() {
  return agent.egress.listener.fd > 0 && agent.state == channel::AgentState::Running &&
         agent.egress.connections < channel::kMaxConnections && agent.control.size < kMostControl;
}

void accept_connections() {
  for (unsigned i = 0; i < kAcceptsInTurn && may_accept(); ++i) {
    const long fd = sys(__NR_accept4, agent.egress.listener.fd, nullptr, nullptr, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    take_connection(static_cast<int>(fd));
  }
}

void end_by_reset(int socket) {
  const struct { int on, seconds; } by_reset = {1, 0};
  sys(__NR_setsockopt, socket, kSocketLevel, SO_LINGER, &by_reset, sizeof by_reset);
}

}  // namespace dsec::guest
