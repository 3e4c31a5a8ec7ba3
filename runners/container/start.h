#pragma once

#include "core/engine/runner.h"
#include "runners/container/guest_place.h"
#include "runners/container/launch.h"
#include "runners/container/namespace_supply.h"
#include "runners/isolation/cgroups.h"

namespace dsec::runners {

/// What a runner has at hand for every start.
struct StartParts {
  GuestPlace& place;
  KeeperSupply& keepers;
  NamespaceSupply& namespaces;
  const CgroupHost& cgroups;
  int program;  ///< load_guest_program
  const std::filesystem::path& dsec;
};

/// Makes a sandbox and returns when its PID 1 runs, with the pid of its keeper. Throws Error; then the caller reclaims
/// what was made.
int start_sandbox(const StartParts& parts, engine::RunnerRequest& request);

}  // namespace dsec::runners
