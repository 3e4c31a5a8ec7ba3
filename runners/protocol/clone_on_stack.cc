#include "runners/protocol/clone_on_stack.h"

#include <asm/unistd.h>
#include <stdint.h>

namespace dsec::runners {

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
      : "a"(static_cast<long>(__NR_clone3)), "D"(&args), "S"(sizeof args), "r"(function),
        "r"(value), [exit] "i"(__NR_exit_group)
      : "rcx", "r11", "memory");
  return result;
}
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
#endif

}  // namespace dsec::runners
