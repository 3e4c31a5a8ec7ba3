#pragma once

#include "core/engine/runner.h"
#include "runners/container/guest_place.h"
#include "runners/container/launch.h"
#include "runners/isolation/cgroups.h"

namespace dsec::runners {

/// What a runner has at hand for every start.
struct StartParts {
  GuestPlace& place;
  KeeperSupply& keepers;
  const CgroupHost& cgroups;
  int program;  ///< load_guest_program
  const std::filesystem::path& dsec;
};

/// Makes a sandbox and returns when its PID 1 runs, with the pid of its keeper. Throws Error; then the caller reclaims
/// what was made.
int start_sandbox(const StartParts& parts, engine::RunnerRequest& request);

/// Number of a signal by name ("SIGTERM", "TERM") or number; SIGTERM for an empty one. Throws Error (Usage).
int signal_number(const std::string& name);

}  // namespace dsec::runners
