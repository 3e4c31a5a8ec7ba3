#pragma once

#include <cstdint>
#include <optional>

#include "core/model/network_policy.h"

namespace dsec::engine {

/// The network of a sandbox as `dsec net show` tells of it.
struct NetworkReport {
  std::optional<NetworkPlan> plan;  ///< absent: it has none, or the host's
  bool attached = false;            ///< the gateway serves it; without, nothing of its network works
  std::uint64_t connections = 0;    ///< open now
  std::uint64_t sent = 0, received = 0, allowed = 0, denied = 0, names = 0;  ///< since it was attached
};

}  // namespace dsec::engine
