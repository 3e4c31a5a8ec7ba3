#include "runners/container/sandbox_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/state_file.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

// A server that accepts nobody lets its queue fill, and then a connection waits.
constexpr timeval kConnectTimeout{.tv_sec = 10, .tv_usec = 0};

// 0 or an errno; `stream` is connected then.
int try_connect(int family, const sockaddr* address, socklen_t size, UniqueFd& stream) {
  stream.reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!stream) return errno;
  // It limits connect(2), too.
  ::setsockopt(stream.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectTimeout, sizeof kConnectTimeout);
  while (::connect(stream.get(), address, size) != 0) {
    if (errno == EINTR) continue;
    return errno == EINPROGRESS || errno == EAGAIN ? ETIMEDOUT : errno;
  }
  constexpr timeval kNone{};
  ::setsockopt(stream.get(), SOL_SOCKET, SO_SNDTIMEO, &kNone, sizeof kNone);
  constexpr int kOn = 1;
  ::setsockopt(stream.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
  return 0;
}

UniqueFd connect_to_loopback(std::uint16_t port) {
  UniqueFd stream;
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int failed = try_connect(AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof v4, stream);
  if (failed == 0) return stream;
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  v6.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  if (try_connect(AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof v6, stream) == 0) return stream;
  // Of the two answers that of IPv4 is the one about the server: a kernel without IPv6 says something else.
  const std::string what = "connect to port " + std::to_string(port) + " of the sandbox";
  if (failed == ECONNREFUSED)
    throw system_error(what, failed).hint("does a server in the sandbox listen on 127.0.0.1, ::1 or all addresses?");
  throw system_error(what, failed);
}

}  // namespace

UniqueFd open_init(const fs::path& directory) {
  const std::optional<SandboxRecord> record = read_record(directory);
  if (living_keeper(directory) == 0 || !record || record->init_pid == 0) throw usage_error("the sandbox does not run");
  UniqueFd init = open_file("/proc/" + std::to_string(record->init_pid), O_PATH | O_DIRECTORY);
  // The keeper is the parent of PID 1: as long as it has not noticed the end, the number means no other process.
  const std::optional<SandboxRecord> still = read_record(directory);
  if (living_keeper(directory) == 0 || !still || still->init_pid != record->init_pid ||
      still->status.state == engine::SandboxState::Stopped || still->status.state == engine::SandboxState::Failed)
    throw usage_error("the sandbox has just ended");
  return init;
}

UniqueFd pidfd_of_init(const fs::path& directory) {
  const std::optional<SandboxRecord> record = read_record(directory);
  UniqueFd pidfd;
  if (record && record->init_pid) pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, record->init_pid, 0)));
  // The pid is PID 1's as long as its keeper has not reaped it.
  if (!pidfd || !living_keeper(directory)) throw usage_error("the sandbox does not run");
  return pidfd;
}

UniqueFd connect_to(const UniqueFd& init, std::uint16_t port) {
  const UniqueFd network(::openat(init.get(), "ns/net", O_RDONLY | O_CLOEXEC));
  if (!network) throw system_error("open the network namespace of the sandbox");
  UniqueFd stream;
  std::exception_ptr failed;
  // A namespace belongs to a thread; a socket stays in the one that it was made in.
  std::thread thread([&] {
    try {
      if (::setns(network.get(), CLONE_NEWNET) != 0) throw system_error("enter the network namespace of the sandbox");
      stream = connect_to_loopback(port);
    } catch (...) {
      failed = std::current_exception();
    }
  });
  thread.join();
  if (failed) std::rethrow_exception(failed);
  return stream;
}

}  // namespace dsec::runners
