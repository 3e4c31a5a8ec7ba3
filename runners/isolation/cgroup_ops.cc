#include "runners/isolation/cgroup_ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

namespace dsec::runners::cgroup {
namespace {

class Fd {
 public:
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

std::int64_t now_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void sleep_ms(int milliseconds) noexcept {
  const timespec pause{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  ::nanosleep(&pause, nullptr);
}

/// Digits at `text`, or "max"; -EINVAL for anything else.
std::int64_t parse(const char* text) noexcept {
  if (std::strncmp(text, "max", 3) == 0) return INT64_MAX;
  if (*text < '0' || *text > '9') return -EINVAL;
  std::uint64_t value = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    if (value > INT64_MAX / 10 - 10) return INT64_MAX;
    value = value * 10 + static_cast<std::uint64_t>(*text - '0');
  }
  return static_cast<std::int64_t>(value);
}

/// SIGKILL to each process in cgroup.procs of this group alone. Reads in small portions: a group may hold thousands.
int kill_listed(int group) noexcept {
  const Fd procs(::openat(group, "cgroup.procs", O_RDONLY | O_CLOEXEC));
  if (procs.get() < 0) return -errno;
  char buffer[4096];
  std::int64_t pid = 0;
  for (;;) {
    const ssize_t got = ::read(procs.get(), buffer, sizeof buffer);
    if (got < 0) return -errno;
    if (got == 0) return 0;
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] >= '0' && buffer[i] <= '9') {
        pid = pid * 10 + (buffer[i] - '0');
      } else {
        if (pid > 0) ::kill(static_cast<pid_t>(pid), SIGKILL);
        pid = 0;
      }
    }
  }
}

struct DirectoryEntry {
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[1];
};

/// Calls action(name) for each directory below `group`.
template <typename Action>
int for_each_child(int group, Action&& action) noexcept {
  const Fd directory(::openat(group, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return -errno;
  alignas(DirectoryEntry) char buffer[4096];
  int result = 0;
  for (;;) {
    const long got = ::syscall(SYS_getdents64, directory.get(), buffer, sizeof buffer);
    if (got < 0) return -errno;
    if (got == 0) return result;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      at += entry->length;
      if (entry->type != DT_DIR || entry->name[0] == '.') continue;
      if (const int failed = action(static_cast<const char*>(entry->name)); failed != 0) result = failed;
    }
  }
}

/// Until the cgroup.events file that is open as `events` has this line.
int wait_for_event(int events, const char* line, int timeout_ms) noexcept {
  const std::int64_t end = now_ms() + timeout_ms;
  for (;;) {
    // The poll reports changes since the last read of the same descriptor.
    char text[256];
    const ssize_t got = ::pread(events, text, sizeof text - 1, 0);
    if (got < 0) return -errno;
    text[got] = '\0';
    if (std::strstr(text, line) != nullptr) return 0;
    const std::int64_t left = end - now_ms();
    if (left <= 0) return -ETIMEDOUT;
    pollfd waiting{events, POLLPRI, 0};
    if (::poll(&waiting, 1, static_cast<int>(left)) < 0 && errno != EINTR) return -errno;
  }
}

/// One attempt; -EBUSY while something still lives there.
int remove_once(int parent, const char* name, bool v2, int depth) noexcept {
  if (::unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return 0;
  if (errno != EBUSY && errno != ENOTEMPTY) return -errno;
  if (depth > 32) return -ELOOP;
  const Fd group(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (group.get() < 0) return errno == ENOENT ? 0 : -errno;
  // v2 groups are killed as a whole by the caller.
  if (!v2) kill_listed(group.get());
  for_each_child(group.get(), [&](const char* child) { return remove_once(group.get(), child, v2, depth + 1); });
  return ::unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -errno;
}

}  // namespace

int write(int group, const char* file, const char* text) noexcept {
  const Fd fd(::openat(group, file, O_WRONLY | O_CLOEXEC));
  if (fd.get() < 0) return -errno;
  return ::write(fd.get(), text, std::strlen(text)) < 0 ? -errno : 0;
}

long read(int group, const char* file, char* buffer, std::size_t size) noexcept {
  const Fd fd(::openat(group, file, O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return -errno;
  std::size_t filled = 0;
  while (filled + 1 < size) {
    const ssize_t got = ::read(fd.get(), buffer + filled, size - 1 - filled);
    if (got < 0) return -errno;
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  buffer[filled] = '\0';
  return static_cast<long>(filled);
}

std::int64_t number(int group, const char* file) noexcept {
  char text[32];
  const long got = read(group, file, text, sizeof text);
  return got < 0 ? got : parse(text);
}

std::int64_t counter(int group, const char* file, const char* key) noexcept {
  char text[4096];
  const long got = read(group, file, text, sizeof text);
  if (got < 0) return got;
  const std::size_t length = std::strlen(key);
  for (const char* line = text; *line != '\0';) {
    if (std::strncmp(line, key, length) == 0 && line[length] == ' ') return parse(line + length + 1);
    const char* end = std::strchr(line, '\n');
    if (end == nullptr) break;
    line = end + 1;
  }
  return -ENOENT;
}

int join(int procs) noexcept { return ::write(procs, "0", 1) < 0 ? -errno : 0; }

int populated(int group) noexcept { return static_cast<int>(counter(group, "cgroup.events", "populated")); }

int wait_empty(int group, int timeout_ms) noexcept {
  const Fd events(::openat(group, "cgroup.events", O_RDONLY | O_CLOEXEC));
  return events.get() < 0 ? -errno : wait_for_event(events.get(), "populated 0", timeout_ms);
}

int kill_all(int group) noexcept {
  const int killed = write(group, "cgroup.kill", "1");
  if (killed != -ENOENT) return killed;
  // Frozen, so that nothing can fork away between two readings; SIGKILL ends frozen processes of v2.
  write(group, "cgroup.freeze", "1");
  const int listed = kill_listed(group);
  const int below = for_each_child(group, [&](const char* child) {
    const Fd fd(::openat(group, child, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd.get() < 0 ? -errno : kill_all(fd.get());
  });
  write(group, "cgroup.freeze", "0");
  return listed != 0 ? listed : below;
}

int freeze(int group, bool frozen, int timeout_ms) noexcept {
  const Fd events(::openat(group, "cgroup.events", O_RDONLY | O_CLOEXEC));
  if (events.get() < 0) return -errno;
  if (const int failed = write(group, "cgroup.freeze", frozen ? "1" : "0"); failed != 0) return failed;
  return wait_for_event(events.get(), frozen ? "frozen 1" : "frozen 0", timeout_ms);
}

std::int64_t oom_kills(int memory_group, bool v2) noexcept {
  return counter(memory_group, v2 ? "memory.events" : "memory.oom_control", "oom_kill");
}

int remove(int parent, const char* name, bool v2, int timeout_ms) noexcept {
  // The usual case: everything has ended already.
  if (::unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return 0;
  const std::int64_t end = now_ms() + timeout_ms;
  if (v2) {
    const Fd group(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (group.get() < 0) return errno == ENOENT ? 0 : -errno;
    if (const int failed = kill_all(group.get()); failed != 0) return failed;
    if (const int failed = wait_empty(group.get(), timeout_ms); failed != 0 && failed != -ENODEV) return failed;
  }
  for (int pause = 1;; pause = pause < 32 ? pause * 2 : 32) {
    const int failed = remove_once(parent, name, v2, 0);
    if (failed != -EBUSY && failed != -ENOTEMPTY) return failed;
    if (now_ms() >= end) return -EBUSY;
    sleep_ms(pause);
  }
}

}  // namespace dsec::runners::cgroup
