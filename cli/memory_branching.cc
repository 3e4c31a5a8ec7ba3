#include "cli/memory_branching.h"

#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {

engine::MemoryBranching& memory_branching(Invocation& call) {
  if (auto* const branching = dynamic_cast<engine::MemoryBranching*>(&call.wiring().engine())) return *branching;
  throw failure("this engine saves no memory of sandboxes");
}

}  // namespace dsec::cli
