#include "runners/container/launch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "core/base/files.h"
#include "runners/protocol/clone_on_stack.h"

namespace dsec::runners {
namespace {

constexpr std::size_t kStack = 32 << 10;

// Shared with both children, of which each ends or executes before its parent goes on.
struct Launch {
  int program, channel, null, cgroup;
  char* const* argv;
  int error = 0;
  const char* step = nullptr;
  alignas(16) char outer[kStack];
  alignas(16) char inner[kStack];
};

int fail(Launch& launch, const char* step, int error) {
  launch.step = step;
  launch.error = error;
  return 1;
}

// As after vfork: the memory is the parent's, so nothing but system calls. All signals stay blocked until the keeper
// has its own session, so that no ^C at our terminal reaches it.
int run_keeper(void* argument) {
  Launch& launch = *static_cast<Launch*>(argument);
  // Beyond the numbers that are filled below, one of which the original may have.
  const int channel = ::fcntl(launch.channel, F_DUPFD_CLOEXEC, 16);
  const int program = ::fcntl(launch.program, F_DUPFD_CLOEXEC, 16);
  const int null = ::fcntl(launch.null, F_DUPFD_CLOEXEC, 16);
  if (channel < 0 || program < 0 || null < 0) return fail(launch, "copy a descriptor", errno);
  for (int fd = 0; fd < 3; ++fd) ::dup3(null, fd, 0);
  if (::dup3(channel, 3, 0) < 0) return fail(launch, "copy a descriptor", errno);
  static char* const kNothing[] = {nullptr};
  ::syscall(SYS_execveat, program, "", launch.argv, kNothing, AT_EMPTY_PATH);
  return fail(launch, "execute dsec-init", errno);
}

int leave_orphan(void* argument) {
  Launch& launch = *static_cast<Launch*>(argument);
  clone_args args = {};
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP;
  args.exit_signal = SIGCHLD;
  args.cgroup = static_cast<std::uint64_t>(launch.cgroup);
  const long pid = clone_on_stack(args, launch.inner, kStack, run_keeper, &launch);
  return pid < 0 ? fail(launch, "clone the keeper", static_cast<int>(-pid)) : 0;
}

}  // namespace

Channel launch_keeper(int program, const std::filesystem::path& directory, int cgroup) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw system_error("make a socket pair");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const UniqueFd null = open_file("/dev/null", O_RDWR);
  std::string path = directory.native(), name = "dsec-keeper", role = "keeper";
  char* const argv[] = {name.data(), role.data(), path.data(), nullptr};
  const auto launch = std::make_unique<Launch>();
  launch->program = program;
  launch->channel = theirs.get();
  launch->null = null.get();
  launch->cgroup = cgroup;
  launch->argv = argv;

  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  clone_args args = {};
  // No exit signal: a host program that waits for its own children must not meet this one.
  args.flags = CLONE_VM | CLONE_VFORK;
  const long outer = clone_on_stack(args, launch->outer, kStack, leave_orphan, launch.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (outer < 0) throw system_error("start the keeper", static_cast<int>(-outer));
  while (::waitpid(static_cast<pid_t>(outer), nullptr, __WALL) < 0 && errno == EINTR) {
  }
  if (launch->step) throw system_error(launch->step, launch->error);
  return Channel(std::move(ours));
}

}  // namespace dsec::runners
