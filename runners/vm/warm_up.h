#pragma once

#include <filesystem>

#include "core/engine/home.h"
#include "core/engine/runner.h"
#include "core/model/sandbox_spec.h"
#include "runners/vm/saved_machine.h"
#include "runners/vm/warm_store.h"

namespace dsec::runners {

/// Saves a guest of that memory and so many processors, from which sandboxes with such limits go on, those that have
/// images in memory (`pmem`) or those that have none; removes those that no sandbox goes on from any more. `microvms`
/// reclaims what was made for it: as a sandbox, so that gc finds it if this process is killed. Needs root. Throws
/// Error.
WarmGuest warm_up(const engine::Home& home, engine::Runner& microvms, const Limits& limits, bool pmem);

/// Of each saved guest what is other here than it was, as misfit() tells.
struct WarmGuestHere {
  WarmGuest guest;
  std::string misfit;
};
std::vector<WarmGuestHere> warm_guests_here(const engine::Home& home, std::vector<std::string>& problems);

/// What was saved of a sandbox in `place`, and what is other here than it was; its layers are not looked at. Throws
/// Error when it is damaged.
struct SavedSandboxHere {
  MachineRecord record;
  std::string misfit;
};
SavedSandboxHere saved_sandbox_here(const engine::Home& home, const std::filesystem::path& place);

}  // namespace dsec::runners
