#pragma once

#include <asm/errno.h>
#include <asm/unistd.h>
#include <linux/fcntl.h>
#include <linux/sched.h>
#include <stddef.h>
#include <stdint.h>

#include "runners/protocol/clone_on_stack.h"
#include "runners/protocol/raw_syscall.h"

/// What every part of this program needs of the kernel.
namespace dsec::guest {

using runners::clone_on_stack;
using runners::sys;

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
