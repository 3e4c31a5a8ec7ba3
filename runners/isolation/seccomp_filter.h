#pragma once

#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "runners/isolation/seccomp_program.h"

namespace dsec::runners {

/// Sets no_new_privs and installs the filter that seccomp.list describes on the calling thread; everything it executes
/// later inherits both, and neither can be taken back. Last step before exec: the filter allows execve, and neither
/// mount nor setns. Returns 0 or an errno. Usable without exceptions, allocation or libseccomp.
inline int install_seccomp_filter() noexcept {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  // The kernel only reads the program, but its structure has no const.
  const sock_fprog program{sizeof(kSeccompProgram) / sizeof(kSeccompProgram[0]),
                           const_cast<sock_filter*>(kSeccompProgram)};
  return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? 0 : errno;
}

}  // namespace dsec::runners
