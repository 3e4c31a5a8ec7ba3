#pragma once

#include "core/base/json.h"
#include "core/engine/memory_snapshots.h"
#include "runners/vm/warm_up.h"

namespace dsec::cli {

/// A saved guest or sandbox as `dsec vm` shows it with -o json.
Json snapshot_json(const runners::WarmGuestHere& here);
Json snapshot_json(const engine::MemorySnapshot& snapshot, const runners::SavedSandboxHere& here);

}  // namespace dsec::cli
