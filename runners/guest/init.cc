#include "runners/guest/init.h"

#include <asm/signal.h>
#include <linux/poll.h>
#include <linux/prctl.h>

#include "runners/guest/sys.h"

namespace dsec::guest {

// asm/signal.h gives siginfo_t a layout of unions; these are the first fields of it, for every signal that kill sends.
namespace {
struct SignalInfo {
  int signal, error, code, padding;
  int pid;
  unsigned uid;
  char rest[104];
};
static_assert(sizeof(SignalInfo) == 128);
}  // namespace

int run_init() {
  sys(__NR_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
  sys(__NR_prctl, PR_SET_NAME, "dsec-init", 0, 0, 0);
  const uint64_t all = ~uint64_t{0};
  sys(__NR_rt_sigprocmask, SIG_SETMASK, &all, nullptr, sizeof all);
  sys(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // The keeper may have died before that: then the other end of its pipe is closed.
  pollfd alive = {3, 0, 0};
  sys(__NR_poll, &alive, 1, 0);
  if (alive.revents) return 1;
  close_fd(3);
  for (;;) {
    SignalInfo info = {};
    const long signal = sys(__NR_rt_sigtimedwait, &all, &info, nullptr, sizeof all);
    if (signal == SIGCHLD || signal < 0) {
      while (sys(__NR_wait4, -1, nullptr, 1 /* WNOHANG */, nullptr) > 0) {
      }
      continue;
    }
    // Only who is outside this pid namespace has no pid in it; what is inside cannot pretend that with kill's code.
    if (info.code == 0 && info.pid == 0) sys(__NR_kill, -1, signal);
  }
}

}  // namespace dsec::guest
