#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <string>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/sandbox_id.h"
#include "registry/loader/fuse_session.h"
#include "registry/loader/holder.h"
#include "registry/loader/protocol.h"
#include "registry/loader/server.h"
#include "registry/loader/shared_state.h"

// dsec-loader: serves the blobs of one DSEC_HOME that are loaded on demand. dsec starts it with its listening socket as
// descriptor 3 and the cgroup.procs of the group that it shall live in as 4; its argument is that home. That process
// makes the filesystem and starts the holder, which starts the server; both are this program again.

namespace {

using namespace dsec;
using namespace dsec::registry;

UniqueFd inherited(int fd) {
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) throw system_error("find descriptor " + std::to_string(fd));
  return UniqueFd(fd);
}

LoaderDescriptors inherited_descriptors() {
  return {inherited(kListenerFd), inherited(kFuseFd), inherited(kRootFd), inherited(kMemoryFd)};
}

UniqueFd inherited_if_there(int fd) { return ::fcntl(fd, F_GETFD) >= 0 ? inherited(fd) : UniqueFd(); }

// A blob is two files, and each sandbox that waits is a connection. Less than what is wanted is no reason to fail.
void raise_limits() {
  constexpr rlim_t kWanted = 1u << 20;
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) throw system_error("read the limit of open files");
  const rlimit more = {kWanted, std::max(files.rlim_max, kWanted)};
  if (::setrlimit(RLIMIT_NOFILE, &more) == 0) return;
  files.rlim_cur = files.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) throw system_error("set the limit of open files");
}

void leave_caller() {
  ::setsid();
  ::umask(077);
  if (::chdir("/") != 0) throw system_error("chdir /");
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
  raise_limits();
}

// The first process: returns when the loader serves, or has failed to.
int start(const std::string& program, const std::string& home) {
  // Outside whatever group dsec was called in, which may end with its caller.
  if (::write(kProcsFd, "0", 1) < 0 && errno != EBADF) throw system_error("join the keepers' control group");
  ::close(kProcsFd);
  // What dsec's caller left open: the other end of a pipe would wait for as long as a sandbox lives.
  ::syscall(SYS_close_range, static_cast<unsigned>(kProcsFd) + 1, ~0u, 0);
  FuseMount mount = mount_fuse();
  const UniqueFd memory = SharedState::make(engine::random_id(16));
  auto [ready, told] = make_pipe();
  SpawnOptions options;
  options.argv = {program, kHold, home};
  options.descriptors = {{kListenerFd, kListenerFd},
                         {mount.device.get(), kFuseFd},
                         {mount.root.get(), kRootFd},
                         {memory.get(), kMemoryFd},
                         {told.get(), kReadyFd}};
  options.kill_with_parent = false;
  const ChildProcess holder = ChildProcess::spawn(options);
  told.reset();
  mount = {};
  char word = 0;
  const bool served = ::read(ready.get(), &word, 1) == 1;
  // Not destroyed when all is well: it lives on.
  if (served) ::_exit(0);
  return 1;
}

// What the holder keeps is of another release than this, an older or a newer one. Whoever started this process, holder
// or server, is of that release, which goes on until nothing needs it any more.
[[noreturn]] void go_on_as_starter(char** argv) {
  const pid_t starter = ::getppid();
  const std::string process = "/proc/" + std::to_string(starter);
  const UniqueFd program(::open((process + "/exe").c_str(), O_PATH | O_CLOEXEC)),
      own(::open("/proc/self/exe", O_PATH | O_CLOEXEC));
  struct stat its = {}, mine = {};
  if (!program || !own || ::fstat(program.get(), &its) != 0 || ::fstat(own.get(), &mine) != 0)
    throw system_error("find the program of another release");
  const std::string arguments = read_all(open_file(process + "/cmdline", O_RDONLY).get(), 1 << 20);
  // Its number may be another's by now.
  if (!arguments.starts_with(std::string(argv[0]) + '\0') || ::getppid() != starter ||
      (its.st_dev == mine.st_dev && its.st_ino == mine.st_ino))
    throw failure("the holder's memory is that of another release, which is not to be had")
        .hint("dsec gc, when no sandbox uses it any longer");
  std::cerr << "dsec-loader: what is kept is of another release, which goes on\n";
  ::execveat(program.get(), "", argv, environ, AT_EMPTY_PATH);
  throw system_error("start the program of another release");
}

}  // namespace

int main(int argc, char** argv) {
  int code = 1;
  try {
    struct stat info = {};
    if (argc < 2 || ::fstat(kListenerFd, &info) != 0 || !S_ISSOCK(info.st_mode)) {
      std::cerr << "dsec-loader is started by dsec; see man dsec-loader\n";
      return 2;
    }
    const std::string program = argv[0], what = argv[1], home = argv[argc - 1];
    if (argc == 2) return start(program, home);
    leave_caller();
    if (!SharedState::fits(kMemoryFd)) go_on_as_starter(argv);
    const LoaderDescriptors descriptors = inherited_descriptors();
    UniqueFd link = inherited_if_there(kLinkFd), ready = inherited_if_there(kReadyFd);
    if (what == kHold) {
      ::prctl(PR_SET_NAME, "dsec-loader-hld", 0, 0, 0);
      hold(descriptors, std::move(link), std::move(ready), program, home);
    } else {
      serve(descriptors, std::move(link), std::move(ready), program, home);
    }
    code = 0;
  } catch (const Error& error) {
    std::cerr << "dsec-loader: " << error.message() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "dsec-loader: " << error.what() << '\n';
  }
  ::_exit(code);
}
