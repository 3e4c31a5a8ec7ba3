#pragma once

#include <cstdint>

#include "runners/vm/machine_spec.h"
#include "runners/vm/machine_start.h"

namespace dsec::runners {

/// A machine whose kernel begins, without the drives of its sandbox and without clock_words(). `pmem`: with room for
/// it.
MachineSpec plain_spec(std::uint64_t memory, unsigned cpus, bool pmem);
/// One that is saved, or that goes on from there. What it was saved with has to be there then: all places for drives.
MachineSpec warm_spec(std::uint64_t memory, unsigned cpus, bool pmem);

}  // namespace dsec::runners
