#include "runners/guest/sys.h"

#include <linux/openat2.h>
#include <linux/time_types.h>

extern "C" {
void* memcpy(void* to, const void* from, size_t size) {
#if defined(__x86_64__)
  void* const start = to;
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
  return start;
#else
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  while (size--) *out++ = *in++;
  return to;
#endif
}

void* memmove(void* to, const void* from, size_t size) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  if (out <= in || out >= in + size) return memcpy(to, from, size);
  while (size--) out[size] = in[size];
  return to;
}

void* memset(void* to, int byte, size_t size) {
#if defined(__x86_64__)
  void* const start = to;
  asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(byte) : "memory");
  return start;
#else
  char* out = static_cast<char*>(to);
  while (size--) *out++ = static_cast<char>(byte);
  return to;
#endif
}

int memcmp(const void* left, const void* right, size_t size) {
  const unsigned char* a = static_cast<const unsigned char*>(left);
  const unsigned char* b = static_cast<const unsigned char*>(right);
  for (; size; --size, ++a, ++b) {
    if (*a != *b) return *a - *b;
  }
  return 0;
}

size_t strlen(const char* text) {
  const char* end = text;
  while (*end) ++end;
  return static_cast<size_t>(end - text);
}
}

namespace dsec::guest {

#if defined(__x86_64__)
// The child must not return through a frame of the parent's stack, so it gets its function in registers and never
// comes back.
long clone_on_stack(clone_args& args, void* stack, size_t size, int (*run)(void*), void* argument) {
  args.stack = reinterpret_cast<uint64_t>(stack);
  args.stack_size = size & ~size_t{15};
  long result;
  register int (*function)(void*) asm("r12") = run;
  register void* value asm("r13") = argument;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %%r13, %%rdi\n\t"
      "call *%%r12\n\t"
      "mov %%eax, %%edi\n\t"
      "mov %[exit], %%eax\n\t"
      "syscall\n\t"
      "ud2\n"
      "1:"
      : "=a"(result)
      : "a"(static_cast<long>(__NR_clone3)), "D"(&args), "S"(sizeof args), "r"(function), "r"(value),
        [exit] "i"(__NR_exit_group)
      : "rcx", "r11", "memory");
  return result;
}

// The kernel enters with the stack pointer at argc and nothing to return to.
asm(R"(
.globl _start
_start:
  xor %ebp, %ebp
  mov %rsp, %rdi
  and $-16, %rsp
  call dsec_start
  ud2
)");
#elif defined(__aarch64__)
long clone_on_stack(clone_args& args, void* stack, size_t size, int (*run)(void*), void* argument) {
  args.stack = reinterpret_cast<uint64_t>(stack);
  args.stack_size = size & ~size_t{15};
  register long x8 asm("x8") = __NR_clone3;
  register long x0 asm("x0") = reinterpret_cast<long>(&args);
  register long x1 asm("x1") = sizeof args;
  register int (*x19)(void*) asm("x19") = run;
  register void* x20 asm("x20") = argument;
  asm volatile(
      "svc 0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x0, x20\n\t"
      "blr x19\n\t"
      "mov x8, %[exit]\n\t"
      "svc 0\n\t"
      "brk 1\n"
      "1:"
      : "+r"(x0)
      : "r"(x8), "r"(x1), "r"(x19), "r"(x20), [exit] "i"(__NR_exit_group)
      : "memory", "x30");
  return x0;
}

asm(R"(
.globl _start
_start:
  mov x29, xzr
  mov x0, sp
  and sp, x0, #-16
  bl dsec_start
  brk 1
)");
#endif

long open_in_root(int root, const char* path, int flags, unsigned mode) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.mode = mode;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  return sys(__NR_openat2, root, path, &how, sizeof how);
}

namespace {
uint64_t clock_us(int clock) {
  __kernel_timespec now = {};
  sys(__NR_clock_gettime, clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1'000;
}
}  // namespace

uint64_t wall_time_us() { return clock_us(0 /* CLOCK_REALTIME */); }
uint64_t monotonic_us() { return clock_us(1 /* CLOCK_MONOTONIC */); }

}  // namespace dsec::guest
