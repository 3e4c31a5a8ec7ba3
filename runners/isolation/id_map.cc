#include "runners/isolation/id_map.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"

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

/// The child of make_user_namespace: shares memory with a process that may have threads, so it touches nothing but its
/// stack, and waits until it is killed.
int wait_to_be_killed(void* parent) {
  // Else a caller that is killed now would leave us here for ever.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != *static_cast<const pid_t*>(parent)) return 1;
  for (;;) ::pause();
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

IdMap id_map_for(std::string_view sandbox_id, const IdRange& range) {
  // FNV-1a; the ids are random already.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : sandbox_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return {.first = range.first + static_cast<std::uint32_t>(hash % range.blocks) * kIdCount, .count = kIdCount};
}

class NewUserNamespace::Child {
 public:
  Child() {
    // No exit signal: a caller that waits for its own children never meets this one.
    pid_ = ::clone(wait_to_be_killed, stack_ + sizeof stack_, CLONE_VM | CLONE_NEWUSER, &parent_);
    if (pid_ >= 0) return;
    const int number = errno;
    Error error = system_error("make a user namespace", number);
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
  void end() const noexcept { ::kill(pid_, SIGKILL); }

 private:
  pid_t parent_ = ::getpid(), pid_ = -1;
  alignas(16) char stack_[16384];
};

NewUserNamespace::NewUserNamespace(const IdMap& map) : child_(std::make_unique<Child>()) {
  attempt("map ids of a new user namespace", [&] {
    write_map(child_->pid(), "uid_map", map.line());
    write_map(child_->pid(), "gid_map", map.line());
    fd_ = open_file("/proc/" + std::to_string(child_->pid()) + "/ns/user", O_RDONLY);
  });
  child_->end();
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
