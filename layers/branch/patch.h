#pragma once

#include <optional>

#include "core/engine/branching.h"
#include "layers/branch/tree_changes.h"

namespace dsec::layers {

/// Writes what makes `before` of a file `after`, as git writes it, to `fd`; nothing when a patch would say nothing.
/// What no patch can hold (binary contents, devices) is named in a line of its own, which git apply and patch(1) pass
/// over.
void write_patch(const ChangedFile& file, int fd);

/// How much of it changed; empty when neither content nor mode did.
std::optional<engine::FileChange> measure(const ChangedFile& file);

}  // namespace dsec::layers
