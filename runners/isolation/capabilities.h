#pragma once

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace dsec::runners {

constexpr std::uint64_t capability_bit(unsigned capability) { return 1ull << capability; }

/// What root of a sandbox may do: the eleven of podman's default. Docker's other three are left out: MKNOD and NET_RAW
/// have no honest use in a sandbox without devices and network, AUDIT_WRITE writes into the host's audit log.
inline constexpr std::uint64_t kSandboxCapabilities =
    capability_bit(CAP_CHOWN) | capability_bit(CAP_DAC_OVERRIDE) | capability_bit(CAP_FOWNER) |
    capability_bit(CAP_FSETID) | capability_bit(CAP_KILL) | capability_bit(CAP_NET_BIND_SERVICE) |
    capability_bit(CAP_SETFCAP) | capability_bit(CAP_SETGID) | capability_bit(CAP_SETPCAP) |
    capability_bit(CAP_SETUID) | capability_bit(CAP_SYS_CHROOT);

/// Takes every capability out of the bounding set that `keep` does not have, so that no exec can bring it back. Needs
/// CAP_SETPCAP, so it comes before the change of user and before set_capabilities. Returns 0 or an errno.
inline int limit_bounding_set(std::uint64_t keep) noexcept {
  for (unsigned capability = 0; capability < 64; ++capability) {
    if (keep & capability_bit(capability)) continue;
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) continue;
    // One past the last capability that this kernel knows.
    return errno == EINVAL && capability > CAP_CHECKPOINT_RESTORE ? 0 : errno;
  }
  return 0;
}

/// Makes `keep` the permitted and effective set, and empties the inheritable and ambient ones, so that a program of
/// another user than root gets none. After the change of user only root (uid 0 inside) still has what it could keep:
/// call it with 0 for others. Returns 0 or an errno.
inline int set_capabilities(std::uint64_t keep) noexcept {
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return errno;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  for (int half = 0; half < 2; ++half)
    data[half].effective = data[half].permitted = static_cast<std::uint32_t>(keep >> (32 * half));
  return ::syscall(SYS_capset, &header, data) == 0 ? 0 : errno;
}

}  // namespace dsec::runners
