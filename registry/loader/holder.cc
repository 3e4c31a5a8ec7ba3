#include "registry/loader/holder.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <list>
#include <optional>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/resident.h"
#include "registry/loader/protocol.h"

namespace dsec::registry {
namespace {

using std::chrono::milliseconds;

constexpr char kEnd[] = "end", kServing[] = "serving";
// Something that kills it again and again shall not keep the processor busy.
constexpr milliseconds kLived{1000}, kFirstRest{50}, kLongestRest{2000};
// What the kernel asks again may be what kills it: only one that serves for this long has survived that.
constexpr milliseconds kSound{60'000}, kTimeToDie{1000};
// About half a minute. Then who waits shall get an error rather than wait on: closing everything gives it to them.
constexpr int kMostFailures = 20;

std::pair<UniqueFd, UniqueFd> make_link() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw system_error("make a pair of sockets");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

SpawnOptions options_for(const char* what, const LoaderDescriptors& descriptors, int link, const std::string& program,
                         const std::string& home) {
  SpawnOptions options;
  // By its path, so that one that was installed meanwhile takes over.
  options.argv = {program, what, home};
  options.descriptors = {{descriptors.listener.get(), kListenerFd},
                         {link, kLinkFd},
                         {descriptors.device.get(), kFuseFd},
                         {descriptors.root.get(), kRootFd},
                         {descriptors.memory.get(), kMemoryFd}};
  options.kill_with_parent = false;
  return options;
}

// By somebody, rather than by what it was asked.
bool was_killed(ChildProcess& server) {
  const std::optional<ExitStatus> status = server.wait_for(kTimeToDie);
  return status && (status->signal == SIGKILL || status->signal == SIGTERM);
}

}  // namespace

void hold(const LoaderDescriptors& descriptors, UniqueFd link, UniqueFd ready, const std::string& program,
          const std::string& home) {
  milliseconds rest{0};
  for (int failures = 0; failures < kMostFailures;) {
    const auto began = std::chrono::steady_clock::now();
    std::optional<ChildProcess> server;
    // A link that was given is that of a server that serves.
    std::optional<std::chrono::steady_clock::time_point> serving_since;
    if (link) serving_since = began;
    try {
      if (!link) {
        auto [here, there] = make_link();
        SpawnOptions options = options_for(kServe, descriptors, there.get(), program, home);
        if (ready) options.descriptors.emplace_back(ready.get(), kReadyFd);
        server.emplace(ChildProcess::spawn(options));
        link = std::move(here);
        ready.reset();
      }
      while (const auto message = receive_message(link.get())) {
        if (*message == kServing) serving_since = std::chrono::steady_clock::now();
        if (*message == kEnd) {
          link.reset();
          if (server) server->wait();
          return;
        }
      }
    } catch (const std::exception& error) {
      std::cerr << "dsec-loader: " << error.what() << '\n';
    }
    link.reset();
    // It has closed its end, so it is dead or about to be.
    const bool killed = server && was_killed(*server);
    server.reset();
    ready.reset();
    const auto now = std::chrono::steady_clock::now();
    const bool lived = now - began > kLived;
    failures = serving_since && (killed || now - *serving_since > kSound) ? 1 : failures + 1;
    rest = lived ? milliseconds(0) : std::clamp(rest * 2, kFirstRest, kLongestRest);
    std::this_thread::sleep_for(rest);
  }
  throw failure("one server after another ends at once: the holder gives up, and reads fail");
}

UniqueFd start_holder(const LoaderDescriptors& descriptors, const std::string& program, const std::string& home) {
  auto [here, there] = make_link();
  // Never waited for nor killed: it outlives this process.
  static std::list<ChildProcess> holders;
  holders.push_back(ChildProcess::spawn(options_for(kHold, descriptors, there.get(), program, home)));
  if (holders.size() > 1) {
    holders.front().wait();
    holders.pop_front();
  }
  return std::move(here);
}

void tell_holder(int link) {
  try {
    send_message(link, kServing);
  } catch (const Error&) {
    // It is about to be replaced.
  }
}

void end_holder(int link) {
  try {
    send_message(link, kEnd);
    (void)receive_message(link);
  } catch (const Error&) {
    // There is none.
  }
}

}  // namespace dsec::registry
