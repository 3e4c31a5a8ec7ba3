#pragma once

#include <optional>

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

struct StartedSandbox {
  int keeper_pid;
  /// To a keeper that can keep another sandbox when this one has ended, as long as the channel is open.
  std::optional<Channel> keeper;
};

/// Makes a sandbox and returns when its PID 1 runs. Throws Error; then the caller reclaims what was made.
StartedSandbox start_sandbox(const StartParts& parts, engine::RunnerRequest& request);

}  // namespace dsec::runners
