#pragma once

/// System calls without a C library: each returns its result or a negative errno, so that children which share their
/// parent's memory have no errno to trample on.
namespace dsec::runners {

#if defined(DSEC_FAKE_SYSCALLS)
/// Of a test, which is the kernel.
long syscall6(long number, long a, long b, long c, long d, long e, long f);
#elif defined(__x86_64__)
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

}  // namespace dsec::runners
