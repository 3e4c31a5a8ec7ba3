#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/model/network_policy.h"

namespace dsec {

/// What is to be different about the network of a sandbox; what is absent stays as it is then. So a change that is
/// asked for twice is the same request, whatever came in between.
struct NetworkChange {
  struct Rules {
    std::vector<NetworkRule> allow, deny;
  };
  std::optional<NetworkPlan> plan;   ///< all of it; the rest is laid over it
  std::optional<std::string> phase;  ///< empty: none
  std::optional<Rules> rules;        ///< of the policy that holds then, and so are the next two
  std::optional<std::vector<HeaderSecret>> inject;
  std::optional<bool> strict;
};

NetworkPlan changed(NetworkPlan plan, const NetworkChange& change);
Json to_json(const NetworkChange& change);

}  // namespace dsec
