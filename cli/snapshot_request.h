#pragma once

#include <string>
#include <vector>

#include "core/engine/branching.h"

namespace dsec::cli {

class Command;
class Invocation;

/// What snapshot and commit have in common.
struct SnapshotFlags {
  std::string sandbox, name, op_id;
  std::vector<std::string> labels;
  bool scrub = false;
};

void declare(Command& command, SnapshotFlags& flags);

/// Makes the layer and tells its reference. `ref` must have a tag.
void make_snapshot(Invocation& call, const SnapshotFlags& flags, const LayerRef& ref);

}  // namespace dsec::cli
