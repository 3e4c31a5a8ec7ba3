#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/engine/layer_mounter.h"
#include "core/engine/layer_packer.h"
#include "core/engine/runner.h"
#include "core/engine/written_copy.h"

namespace dsec::engine {

/// What lies below a writable layer, as a readable directory: all lowers in one.
UniqueFd compose_lowers(const LayerStack& stack);

/// What a sandbox has written, open for reading; the sandbox stands still as long as the object lives, or until its
/// tree is released.
class StillTree {
 public:
  /// `layers` are those of the sandbox, bottom to top. Throws Error when it has no writable layer.
  StillTree(Runner& runner, const std::filesystem::path& directory, std::vector<StoredLayer> layers,
            const LayerStack& stack);
  /// Of what was copied, while the sandbox goes on. The tree has no lower where the copy has none: its upper has no
  /// deletion of what is not there, and it can be packed, but not compared.
  StillTree(WrittenCopy copy, std::vector<StoredLayer> layers);
  StillTree(const StillTree&) = delete;
  const WrittenTree& tree() const noexcept { return tree_; }

 private:
  std::unique_ptr<Stillness> still_;
  WrittenCopy copy_;
  UniqueFd upper_, lower_;
  WrittenTree tree_;
};

}  // namespace dsec::engine
