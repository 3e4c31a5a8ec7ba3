#include "runners/egress/gateway/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>

#include "core/base/error.h"
#include "core/base/received_descriptors.h"
#include "core/base/resident.h"

namespace dsec::egress {
namespace {

using std::chrono::milliseconds;

// A message is one of these letters and an id; descriptors go along with the first.
constexpr char kKeep = 'k', kDrop = 'd', kEnd = 'e';
constexpr std::size_t kMostDescriptors = 16, kLongestId = 256;
// Something that kills it again and again shall not keep the processor busy.
constexpr milliseconds kLived{1000}, kFirstRest{50}, kLongestRest{2000};

std::pair<UniqueFd, UniqueFd> make_pair_of_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw system_error("make a pair of sockets");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void send_message(int socket, char what, const std::string& id, const std::vector<int>& descriptors) {
  attempt("cannot tell the guard of the gateway", [&] { dsec::send_message(socket, what + id, descriptors); });
}

// False when the other end is closed.
bool receive(int socket, std::string& text, std::vector<UniqueFd>& descriptors) {
  text.resize(kLongestId);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)];
  iovec part = {text.data(), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  while ((got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  if (got <= 0) return false;
  text.resize(static_cast<std::size_t>(got));
  descriptors = take_descriptors(message);
  return true;
}

// Those of a process that this one was copied from.
void close_others(int listener, int socket) {
  int keep[] = {2, listener, socket};
  std::sort(std::begin(keep), std::end(keep));
  unsigned from = 3;
  for (const int fd : keep) {
    if (static_cast<unsigned>(fd) > from) ::syscall(SYS_close_range, from, static_cast<unsigned>(fd) - 1, 0);
    from = std::max(from, static_cast<unsigned>(fd) + 1);
  }
  ::syscall(SYS_close_range, from, ~0u, 0);
}

}  // namespace

void Guard::run(int listener, const Serve& serve) { watch({}, listener, serve); }

// Waits for the process at the other end of `socket` (none yet: there is none), and replaces it when it dies.
void Guard::watch(UniqueFd socket, int listener, const Serve& serve) {
  ::prctl(PR_SET_NAME, "dsec-egress-grd", 0, 0, 0);
  Kept kept;
  milliseconds rest{0};
  for (;;) {
    const auto began = std::chrono::steady_clock::now();
    try {
      if (!socket) socket = fork_server(kept, listener, serve);
    } catch (const std::exception& error) {
      std::cerr << "dsec-egress: " << error.what() << '\n';
    }
    std::string text;
    for (std::vector<UniqueFd> descriptors; socket && receive(socket.get(), text, descriptors); descriptors.clear()) {
      const std::string id = text.substr(1);
      if (text[0] == kKeep) kept[id] = std::move(descriptors);
      if (text[0] == kDrop) kept.erase(id);
      if (text[0] == kEnd) ::_exit(0);
    }
    socket.reset();
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const bool lived = std::chrono::steady_clock::now() - began > kLived;
    rest = lived ? milliseconds(0) : std::clamp(rest * 2, kFirstRest, kLongestRest);
    std::this_thread::sleep_for(rest);
  }
}

// The guard's end of the socket to a new process that serves.
UniqueFd Guard::fork_server(const Kept& kept, int listener, const Serve& serve) {
  auto [here, there] = make_pair_of_sockets();
  const pid_t child = ::fork();
  if (child < 0) throw system_error("fork");
  if (child > 0) return std::move(here);
  here.reset();
  ::prctl(PR_SET_NAME, "dsec-egress", 0, 0, 0);
  Kept copy;
  for (const auto& [id, descriptors] : kept)
    for (const UniqueFd& fd : descriptors) copy[id].emplace_back(fd.get());
  Guard guard(std::move(there), listener, serve);
  try {
    ::_exit(serve(guard, std::move(copy)));
  } catch (const std::exception& error) {
    std::cerr << "dsec-egress: " << error.what() << '\n';
    ::_exit(1);
  }
}

void Guard::revive() {
  auto [here, there] = make_pair_of_sockets();
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  const pid_t child = ::fork();
  if (child < 0) throw system_error("fork");
  if (child == 0) {
    close_others(listener_, there.get());
    watch(std::move(there), listener_, serve_);
  }
  socket_ = std::move(here);
}

void Guard::keep(const std::string& id, const std::vector<int>& descriptors) {
  send_message(socket_.get(), kKeep, id, descriptors);
}

void Guard::drop(const std::string& id) { send_message(socket_.get(), kDrop, id, {}); }

void Guard::end() {
  try {
    send_message(socket_.get(), kEnd, "", {});
  } catch (const Error&) {
    return;
  }
  std::string text;
  std::vector<UniqueFd> none;
  receive(socket_.get(), text, none);
}

}  // namespace dsec::egress
