#pragma once

#include <asm/errno.h>
#include <asm/unistd.h>
#include <linux/fcntl.h>
#include <linux/sched.h>
#include <stddef.h>
#include <stdint.h>

#include "runners/protocol/clone_on_stack.h"

/// System calls without a C library: each returns its result or a negative errno, so that children which share our
/// memory have no errno to trample on.
namespace dsec::guest {

#if defined(__x86_64__)
inline long syscall6(long number, long a, long b, long c, long d, long e, long f) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
inline long syscall6(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
#else
#error "dsec-init has no system call entry for this processor yet"
#endif

inline long as_long(long value) { return value; }
inline long as_long(int value) { return value; }
inline long as_long(unsigned value) { return static_cast<long>(value); }
inline long as_long(unsigned long value) { return static_cast<long>(value); }
inline long as_long(unsigned long long value) { return static_cast<long>(value); }
inline long as_long(const volatile void* value) { return reinterpret_cast<long>(value); }
inline long as_long(decltype(nullptr)) { return 0; }

template <typename... Args>
inline long sys(long number, Args... args) {
  static_assert(sizeof...(Args) <= 6);
  long values[6] = {};
  unsigned at = 0;
  ((values[at++] = as_long(args)), ...);
  return syscall6(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

using runners::clone_on_stack;

[[noreturn]] inline void exit_now(int code) {
  for (;;) sys(__NR_exit_group, code);
}

inline long close_fd(int fd) { return sys(__NR_close, fd); }
inline long read_fd(int fd, void* data, size_t size) { return sys(__NR_read, fd, data, size); }
inline long write_fd(int fd, const void* data, size_t size) { return sys(__NR_write, fd, data, size); }
inline long open_at(int directory, const char* path, int flags, unsigned mode = 0) {
  return sys(__NR_openat, directory, path, flags, mode);
}

/// openat2(2) below `root` as if it were "/", without following /proc's magic links.
long open_in_root(int root, const char* path, int flags, unsigned mode = 0);

/// Microseconds: since the epoch, and of a clock that never jumps.
uint64_t wall_time_us();
uint64_t monotonic_us();

}  // namespace dsec::guest

extern "C" {
void* memcpy(void* to, const void* from, size_t size);
void* memmove(void* to, const void* from, size_t size);
void* memset(void* to, int byte, size_t size);
int memcmp(const void* left, const void* right, size_t size);
size_t strlen(const char* text);
}
