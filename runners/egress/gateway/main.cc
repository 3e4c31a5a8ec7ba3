#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/give_up_rights.h"
#include "runners/egress/gateway/gateway.h"
#include "runners/egress/gateway/guard.h"
#include "runners/egress/gateway/server_connection.h"

// dsec-egress: the egress gateway of one DSEC_HOME. dsec starts it with its listening control socket as descriptor 3
// and the cgroup.procs of the keepers' group as 4; its arguments are that home, for who looks at processes, and the
// name servers to ask. It reads what sandboxes and servers send, so it keeps no right over the host: everything that
// needs one comes to it as a descriptor. It is two processes, see guard.h.

namespace {

using namespace dsec;

// Out of the caller's session and group, to live as long as there are sandboxes. What is returned is closed when the
// gateway is ready, which the caller waits for.
UniqueFd leave_caller() {
  // What dsec's caller left open: the other end of a pipe would wait for as long as a sandbox lives.
  ::syscall(SYS_close_range, 5u, ~0u, 0);
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) throw system_error("make a pipe");
  // fork(2) here has nobody to race with: there is one thread.
  const pid_t child = ::fork();
  if (child < 0) throw system_error("fork");
  if (child > 0) {
    ::close(ready[1]);
    char word = 0;
    ::_exit(::read(ready[0], &word, 1) == 1 ? 0 : 1);
  }
  ::close(ready[0]);
  ::setsid();
  ::umask(077);
  if (::chdir("/") != 0) throw system_error("chdir /");
  // Outside whatever group dsec was called in, which may end with its caller.
  if (::write(4, "0", 1) < 0 && errno != EBADF) throw system_error("join the keepers' control group");
  ::close(4);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  return UniqueFd(ready[1]);
}

void raise_limits() {
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) throw system_error("read the limit of open files");
  constexpr rlim_t kWanted = 1u << 20;
  if (files.rlim_max < kWanted) {
    const rlimit more = {kWanted, kWanted};
    if (::setrlimit(RLIMIT_NOFILE, &more) == 0) return;
  }
  files.rlim_cur = files.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) throw system_error("set the limit of open files");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    struct stat info = {};
    if (::fstat(3, &info) != 0 || !S_ISSOCK(info.st_mode)) {
      std::cerr << "dsec-egress is started by dsec; see man dsec-network\n";
      return 2;
    }
    const uid_t owner = ::geteuid();
    UniqueFd ready = leave_caller();
    raise_limits();
    egress::ServerConnection::read_trust();
    give_up_rights();
    const std::vector<std::string> servers(argv + std::min(argc, 2), argv + argc);
    egress::Guard::run(3, [&](egress::Guard& guard, egress::Kept kept) {
      std::optional<egress::Gateway> gateway;
      try {
        gateway.emplace(UniqueFd(3), owner, servers, guard, std::move(kept));
      } catch (const std::exception& error) {
        // Another would fare no better.
        std::cerr << "dsec-egress: " << error.what() << '\n';
        guard.end();
        return 1;
      }
      // Who started the first waits for that; nobody waits for a later one.
      if (::write(ready.get(), "1", 1) < 0 && errno != EPIPE) std::cerr << "dsec-egress: " << errno_text(errno) << '\n';
      ready.reset();
      gateway->run();
      return 0;
    });
  } catch (const std::exception& error) {
    std::cerr << "dsec-egress: " << error.what() << '\n';
    return 1;
  }
}
