#include "runners/container/composed_tree.h"

#include <fcntl.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/mount.h"
#include "runners/container/overlay_identity.h"
#include "runners/isolation/writable_layer.h"

namespace dsec::runners {
namespace {

std::vector<int> descriptors(const engine::LayerStack& stack) {
  std::vector<int> result;
  for (const UniqueFd& lower : stack.lowers) result.push_back(lower.get());
  return result;
}

}  // namespace

UniqueFd compose_tree(const std::filesystem::path& sandbox, const engine::LayerStack& stack) {
  const UniqueFd writable = open_writable_layer(sandbox, std::nullopt, LayerUse::Run);
  // The sandbox's own overlay skipped syncs, and left a mark against using the layer again after a crash of the host.
  // No sandbox outlives its boot, so there was none.
  ::unlinkat(writable.get(), "work/work/incompat/volatile/dirty", 0);
  for (const char* mark : {"work/work/incompat/volatile", "work/work/incompat"})
    ::unlinkat(writable.get(), mark, AT_REMOVEDIR);
  const std::vector<int> lowers = descriptors(stack);
  const OverlayIdentity identity(0);
  return make_overlay(
      {.lowers = lowers, .writable = writable.get(), .attributes = MountFlags::kNoDev | MountFlags::kNoSuid});
}

}  // namespace dsec::runners
