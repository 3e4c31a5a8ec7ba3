#include "runners/isolation/id_map.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "runners/protocol/raw_syscall.h"

namespace dsec::runners {
namespace {

std::optional<std::uint32_t> read_id(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The first range of `user` in "USER:FIRST:COUNT" lines that holds a block.
std::optional<IdRange> range_of(std::string_view text, std::string_view user) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto one = line.find(':'), two = line.rfind(':');
    if (one == line.npos || one == two || line.substr(0, one) != user) continue;
    const auto first = read_id(line.substr(one + 1, two - one - 1)), count = read_id(line.substr(two + 1));
    // Id 0 outside would be the host's root; ids from 2^32 - 65536 on do not exist.
    if (!first || !count || *first == 0 || *count < kIdCount || *count > 0xffff0000u - *first) continue;
    return IdRange{*first, *count / kIdCount};
  }
  return std::nullopt;
}

std::string text_of(const char* path) { return std::filesystem::exists(path) ? read_file(path) : std::string(); }

/// What parent and child tell each other, in the memory that they share.
struct Orders {
  /// Done can be waited for as a futex.
  enum State : std::uint32_t { kMapping, kMapped, kDone };
  pid_t parent = ::getpid();
  std::uint32_t state = kMapping;
  const char* failed = nullptr;  ///< the step that did
  int error = 0;

  void enter(State next) {
    __atomic_store_n(&state, next, __ATOMIC_RELEASE);
    sys(__NR_futex, &state, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  /// Returns after some time at the latest: false.
  bool await(State wanted) {
    const timespec some_time = {0, 100'000'000};
    const std::uint32_t now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (now < wanted) sys(__NR_futex, &state, FUTEX_WAIT_PRIVATE, now, &some_time, nullptr, 0);
    return __atomic_load_n(&state, __ATOMIC_ACQUIRE) >= wanted;
  }
  void fail(const char* step, long result) {
    failed = step;
    error = static_cast<int>(-result);
  }
};

void make_network(Orders& orders) {
  const long made = sys(__NR_unshare, CLONE_NEWNET);
  if (made < 0) return orders.fail("make a network namespace", made);
  const long socket = sys(__NR_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return orders.fail("open a socket", socket);
  ifreq request = {};
  request.ifr_name[0] = 'l';
  request.ifr_name[1] = 'o';
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const long up = sys(__NR_ioctl, socket, SIOCSIFFLAGS, &request);
  sys(__NR_close, socket);
  if (up < 0) orders.fail("bring up the loopback device", up);
}

/// The child of NewUserNamespace: shares memory with a process that may have threads, so it touches nothing but its
/// stack and its orders, not even errno, and waits until it is killed.
int obey(void* argument) {
  Orders& orders = *static_cast<Orders*>(argument);
  // Else a caller that is killed now would leave us here for ever.
  sys(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (sys(__NR_getppid) != orders.parent) return 1;
  // What is made before the map is written belongs to nobody.
  while (!orders.await(Orders::kMapped)) {
  }
  make_network(orders);
  orders.enter(Orders::kDone);
  for (;;) sys(__NR_ppoll, nullptr, 0, nullptr, nullptr, 0);
}

void write_map(pid_t pid, const char* file, const std::string& line) {
  const std::string path = "/proc/" + std::to_string(pid) + '/' + file;
  write_all(open_file(path, O_WRONLY).get(), line);
}

}  // namespace

std::string IdMap::line() const { return "0 " + std::to_string(first) + ' ' + std::to_string(count) + '\n'; }

IdRange id_range(std::string_view subuid, std::string_view subgid) {
  for (const char* user : {"dsec", "containers"}) {
    const auto uids = range_of(subuid, user), gids = range_of(subgid, user);
    if (uids && gids && uids->first == gids->first) return {uids->first, std::min(uids->blocks, gids->blocks)};
  }
  return kDefaultIdRange;
}

IdRange host_id_range() { return id_range(text_of("/etc/subuid"), text_of("/etc/subgid")); }

IdMap id_map_for(std::string_view text, const IdRange& range) {
  // FNV-1a; the ids are random already.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return {.first = range.first + static_cast<std::uint32_t>(hash % range.blocks) * kIdCount, .count = kIdCount};
}

class NewUserNamespace::Child {
 public:
  /// `flags`: of clone(2).
  explicit Child(int flags) {
    // No exit signal: a caller that waits for its own children never meets this one.
    // No signal is for it, and a handler of ours must not run twice.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    // It may live for long: with descriptors of its own it would hold all that we have open now, and so our locks.
    pid_ = ::clone(obey, stack_ + sizeof stack_, CLONE_VM | CLONE_FILES | flags, &orders);
    const int number = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid_ >= 0) return;
    Error error = system_error(flags & CLONE_NEWUSER ? "make a user namespace" : "clone", number);
    if (number == ENOSPC || number == EUSERS) {
      error.hint("raise the limit: sysctl user.max_user_namespaces=100000");
    } else if (number == EPERM) {
      error.hint(
          "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, no restriction by AppArmor), or use "
          "--userns host");
    }
    throw error;
  }
  Child(const Child&) = delete;
  ~Child() {
    end();
    while (::waitpid(pid_, nullptr, __WALL) < 0 && errno == EINTR) {
    }
  }

  pid_t pid() const noexcept { return pid_; }
  /// Begins it: the destructor waits for that.
  void end() const noexcept { ::kill(pid_, SIGKILL); }
  UniqueFd wait_for_network() {
    while (!orders.await(Orders::kDone))
      if (!lives()) throw failure("the process that makes the network namespace was killed");
    if (orders.failed) throw system_error(orders.failed, orders.error);
    return namespace_file("net");
  }
  UniqueFd namespace_file(const char* name) const {
    return open_file("/proc/" + std::to_string(pid_) + "/ns/" + name, O_RDONLY);
  }
  bool lives() const noexcept {
    siginfo_t ended = {};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 &&
           ended.si_pid == 0;
  }
  Orders orders;

 private:
  pid_t pid_ = -1;
  alignas(16) char stack_[16384];
};

NewUserNamespace::NewUserNamespace(const IdMap& map, Network network)
    : map_(map), child_(std::make_unique<Child>(CLONE_NEWUSER)) {
  attempt("map ids of a new user namespace", [&] {
    write_map(child_->pid(), "uid_map", map.line());
    write_map(child_->pid(), "gid_map", map.line());
    fd_ = child_->namespace_file("user");
  });
  if (network == Network::With) {
    begin_network();
  } else if (network == Network::Without) {
    child_->end();
  }
}

bool NewUserNamespace::maker_lives() const noexcept { return child_->lives(); }

void NewUserNamespace::begin_network() noexcept { child_->orders.enter(Orders::kMapped); }

UniqueFd NewUserNamespace::take_network() {
  UniqueFd network = child_->wait_for_network();
  child_->end();
  return network;
}

UniqueFd make_network_namespace() {
  const auto child = std::make_unique<NewUserNamespace::Child>(0);
  child->orders.enter(Orders::kMapped);
  return child->wait_for_network();
}

NewUserNamespace::NewUserNamespace(NewUserNamespace&&) noexcept = default;
NewUserNamespace::~NewUserNamespace() = default;

void idmap_mount(int mount, int user_namespace, std::string_view what) {
  try {
    id_map_mount(mount, user_namespace);
  } catch (Error& error) {
    throw error.context("cannot map ids of " + std::string(what))
        .hint(
            "use a filesystem that can map ids (ext4, xfs, btrfs; tmpfs from Linux 6.3 on) for DSEC_HOME, or --userns "
            "host");
  }
}

}  // namespace dsec::runners
