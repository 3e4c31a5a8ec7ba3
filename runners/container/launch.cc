#include "runners/container/launch.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "core/base/files.h"
#include "runners/protocol/clone_on_stack.h"
#include "runners/protocol/raw_syscall.h"

namespace dsec::runners {
namespace {

constexpr std::size_t kStack = 16 << 10;
constexpr std::chrono::seconds kLongestEnd{10};

}  // namespace

// Shared with both children, which go on beside us: they touch nothing else, and the C library least of all.
struct LaunchChildren {
  int program = -1, channel = -1, null = -1, cgroup = -1;
  std::string path, name = "dsec-keeper", role = "keeper";
  char* argv[4] = {};
  long outer = 0;
  long error = 0;
  const char* step = nullptr;
  alignas(16) char outer_stack[kStack];
  alignas(16) char inner_stack[kStack];

  LaunchChildren() {}  // so that nobody clears the stacks, whose pages are not free
  int fail(const char* what, long result) {
    step = what;
    error = -result;
    return 1;
  }
};

namespace {

// All signals stay blocked until the keeper has its own session, so that no ^C at our terminal reaches it.
int run_keeper(void* argument) {
  auto& children = *static_cast<LaunchChildren*>(argument);
  // Beyond the numbers that are filled below, one of which the original may have.
  const long channel = sys(__NR_fcntl, children.channel, F_DUPFD_CLOEXEC, 16);
  const long program = sys(__NR_fcntl, children.program, F_DUPFD_CLOEXEC, 16);
  const long null = sys(__NR_fcntl, children.null, F_DUPFD_CLOEXEC, 16);
  for (const long copy : {channel, program, null})
    if (copy < 0) return children.fail("copy a descriptor", copy);
  for (int fd = 0; fd < 3; ++fd) sys(__NR_dup3, null, fd, 0);
  if (const long placed = sys(__NR_dup3, channel, 3, 0); placed < 0) return children.fail("copy a descriptor", placed);
  static char* const kNothing[] = {nullptr};
  return children.fail("execute dsec-init", sys(__NR_execveat, program, "", children.argv, kNothing, AT_EMPTY_PATH));
}

int leave_orphan(void* argument) {
  auto& children = *static_cast<LaunchChildren*>(argument);
  clone_args args = {};
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP;
  args.exit_signal = SIGCHLD;
  args.cgroup = static_cast<std::uint64_t>(children.cgroup);
  const long pid = clone_on_stack(args, children.inner_stack, kStack, run_keeper, &children);
  return pid < 0 ? children.fail("clone the keeper", pid) : 0;
}

}  // namespace

KeeperLaunch::KeeperLaunch(int program, const std::filesystem::path& directory, int cgroup)
    : children_(std::make_unique<LaunchChildren>()) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw system_error("make a socket pair");
  channel_ = Channel(UniqueFd(ends[0]));
  const UniqueFd theirs(ends[1]), null = open_file("/dev/null", O_RDWR);
  children_->program = program;
  children_->channel = theirs.get();
  children_->null = null.get();
  children_->cgroup = cgroup;
  children_->path = directory.native();
  char** argv = children_->argv;
  for (std::string* text : {&children_->name, &children_->role, &children_->path}) *argv++ = text->data();

  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  clone_args args = {};
  // No exit signal: a host program that waits for its own children must not meet this one. It copies our descriptors,
  // so those it needs may go at once.
  args.flags = CLONE_VM;
  children_->outer = clone_on_stack(args, children_->outer_stack, kStack, leave_orphan, children_.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (children_->outer < 0) throw system_error("start the keeper", static_cast<int>(-children_->outer));
}

void KeeperLaunch::await_execution() {
  if (!children_) return;
  while (::waitpid(static_cast<pid_t>(children_->outer), nullptr, __WALL) < 0 && errno == EINTR) {
  }
  const auto children = std::move(children_);
  if (children->step) throw system_error(children->step, static_cast<int>(children->error));
}

void KeeperLaunch::finish() {
  await_execution();
  finished_ = true;
}

bool KeeperLaunch::broken() const noexcept {
  pollfd said{channel_.fd(), POLLIN, 0};
  return ::poll(&said, 1, 0) != 0;
}

KeeperLaunch::~KeeperLaunch() {
  if (finished_) return;
  try {
    await_execution();
    channel_.hang_up();
    while (channel_.receive(kLongestEnd)) {
    }
  } catch (const Error&) {
    // There is no keeper, or it has closed its end.
  }
}

namespace {

std::unique_ptr<KeeperLaunch> launch(const CgroupHost& cgroups, int program, const std::filesystem::path& directory) {
  // Outside every sandbox, and not where dsec was called, which may end with its caller.
  const UniqueFd group = cgroups.keepers_group();
  return std::make_unique<KeeperLaunch>(program, directory, group.get());
}

}  // namespace

std::unique_ptr<KeeperLaunch> KeeperSupply::take(const CgroupHost& cgroups, int program,
                                                 const std::filesystem::path& directory) {
  std::unique_ptr<KeeperLaunch> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = std::move(waiting_);
  }
  if (waiting && !waiting->broken()) return waiting;
  return launch(cgroups, program, directory);
}

void KeeperSupply::prepare(const CgroupHost& cgroups, int program, const std::filesystem::path& directory) noexcept {
  const std::lock_guard lock(mutex_);
  if (waiting_) return;
  try {
    // What ps shows of it until it knows its sandbox, whose id takes the same room.
    const std::string nobody(directory.filename().native().size(), '-');
    waiting_ = launch(cgroups, program, directory.parent_path() / nobody);
  } catch (const std::exception&) {
    // Whoever needs it launches its own, and tells why it cannot.
  }
}

void KeeperSupply::refill(const CgroupHost& cgroups, int program, const std::filesystem::path& directory) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(again_, true)) return;
  }
  prepare(cgroups, program, directory);
}

void KeeperSupply::clear() {
  std::unique_ptr<KeeperLaunch> waiting;
  const std::lock_guard lock(mutex_);
  waiting = std::move(waiting_);
}

}  // namespace dsec::runners
