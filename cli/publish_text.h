#pragma once

#include "cli/output.h"
#include "registry/publish.h"

namespace dsec::cli {

/// What was published: a line a layer, or one object.
void tell(Output& out, const registry::PublishResult& result);

}  // namespace dsec::cli
