#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace dsec::guest {

long make_directory(const char* path, unsigned mode) {
  const long made = sys(__NR_mkdirat, -100, path, mode);
  return made == -EEXIST ? 0 : made;
}

long mount_at(const char* source, const char* target, const char* type, unsigned long flags, const char* options) {
  return sys(__NR_mount, source, target, type, flags, options);
}

void sleep_ms(unsigned milliseconds) {
  const struct { long seconds, nanoseconds; } pause = {milliseconds / 1000, long{milliseconds % 1000} * 1'000'000};
  sys(__NR_nanosleep, &pause, nullptr);
}

bool read_small(int directory, const char* path, Buffer& out) {
  constexpr size_t kMost = 1u << 20;
  const long fd = open_at(directory, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  out.size = 0;
  char chunk[4096];
  long got = 0;
  while (out.size < kMost && (got = read_fd(static_cast<int>(fd), chunk, sizeof chunk)) > 0)
    out.append(chunk, static_cast<size_t>(got));
  close_fd(static_cast<int>(fd));
  out.append("", 1);
  --out.size;
  return got >= 0;
}

bool same_text(const char* left, const char* right) {
  while (*left && *left == *right) ++left, ++right;
  return *left == *right;
}

bool begins_with(const char* text, const char* prefix) {
  while (*prefix && *prefix == *text) ++prefix, ++text;
  return !*prefix;
}

void complain(const char* what, const char* of, long result) {
  Buffer text = {};
  // An error: also a kernel that is told to be quiet shows it.
  text.append("<3>dsec-init: cannot ");
  text.append(what);
  if (*of) text.append(" "), text.append(of);
  if (result) text.append(": error "), text.append_number(-result);
  text.append("\n");
  // The kernel's log reaches whatever console there is.
  const long log = open_at(-100, "/dev/kmsg", O_WRONLY | O_CLOEXEC);
  write_fd(log >= 0 ? static_cast<int>(log) : 2, text.data, text.size);
  if (log >= 0) close_fd(static_cast<int>(log));
  text.clear();
}

}  // namespace dsec::guest
