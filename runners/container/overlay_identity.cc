#include "runners/container/overlay_identity.h"

#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"

namespace dsec::runners {

OverlayIdentity::OverlayIdentity(std::uint32_t id) {
  if (::syscall(SYS_capget, &header_, before_) != 0) throw system_error("read the capabilities");
  ::setfsgid(id);
  ::setfsuid(id);
  // Leaving uid 0 has taken the effective capabilities that concern files: they come back here, all but one.
  __user_cap_data_struct sets[2] = {before_[0], before_[1]};
  sets[0].effective &= ~(1u << CAP_SYS_RESOURCE);
  if (::syscall(SYS_capset, &header_, sets) == 0) return;
  const int failed = errno;
  restore();
  throw system_error("set the capabilities", failed);
}

OverlayIdentity::~OverlayIdentity() { restore(); }

void OverlayIdentity::restore() noexcept {
  ::setfsuid(0);
  ::setfsgid(0);
  ::syscall(SYS_capset, &header_, before_);
}

}  // namespace dsec::runners
