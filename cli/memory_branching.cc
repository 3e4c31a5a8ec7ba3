#include "cli/memory_branching.h"

#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {

engine::MemoryBranching& memory_branching(Invocation& call) {
  if (auto* const branching = dynamic_cast<engine::MemoryBranching*>(&call.wiring().engine())) return *branching;
  throw usage_error("memory is saved of sandboxes of this host alone, and the context is " +
                    quote(call.wiring().context()))
      .hint("dsec --context local …")
      .hint("without --memory, dsec fork takes the files alone");
}

}  // namespace dsec::cli
