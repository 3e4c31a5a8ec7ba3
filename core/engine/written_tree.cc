#include "core/engine/written_tree.h"

#include <fcntl.h>

#include "core/base/error.h"
#include "core/base/mount.h"

namespace dsec::engine {

UniqueFd compose_lowers(const LayerStack& stack) {
  std::vector<int> lowers;
  for (const UniqueFd& lower : stack.lowers) lowers.push_back(lower.get());
  // overlayfs wants two lowers when nothing is to be written.
  UniqueFd mount = lowers.size() == 1
                       ? UniqueFd(::openat(lowers[0], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC))
                       : make_overlay({.lowers = lowers, .attributes = MountFlags::kReadOnly | MountFlags::kNoDev});
  if (!mount) throw system_error("open the lowest layer");
  return mount;
}

StillTree::StillTree(Runner& runner, const std::filesystem::path& directory, std::vector<StoredLayer> layers,
                     const LayerStack& stack)
    : lower_(compose_lowers(stack)) {
  // Last, so that it stands still for no longer than it is read.
  still_ = runner.hold_still(directory);
  upper_ = runner.open_writable_layer(directory);
  tree_ = {upper_.get(), lower_.get(), std::move(layers), [this] { still_.reset(); }};
}

StillTree::StillTree(WrittenCopy copy, std::vector<StoredLayer> layers)
    : copy_(std::move(copy)), tree_{copy_.upper.get(), copy_.lower ? copy_.lower.get() : -1, std::move(layers), {}} {}

}  // namespace dsec::engine
