#include "runners/isolation/resource_limits.h"

#include <algorithm>
#include <cerrno>

namespace dsec::runners {

int apply_resource_limits() noexcept {
  for (const ResourceLimit& wanted : kResourceLimits) {
    rlimit now{};
    if (::getrlimit(static_cast<__rlimit_resource>(wanted.resource), &now) != 0) return errno;
    const rlim_t hard = std::min(now.rlim_max, wanted.hard);
    const rlimit next{std::min(wanted.soft, hard), hard};
    if (::setrlimit(static_cast<__rlimit_resource>(wanted.resource), &next) != 0) return errno;
  }
  return 0;
}

}  // namespace dsec::runners
