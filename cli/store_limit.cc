#include "cli/store_limit.h"

#include <unistd.h>

#include "cli/wiring.h"
#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/progress.h"
#include "core/base/units.h"
#include "registry/gc/evict.h"

namespace dsec::cli {

std::function<void(std::span<const Digest> needed)> unmount_others(Wiring& wiring) {
  // Without root nothing of ours is mounted.
  if (::geteuid() != 0) return {};
  return [&wiring](std::span<const Digest> needed) { wiring.mounter().unmount_unused(needed); };
}

void keep_store_limit(Wiring& wiring, Progress& progress) noexcept {
  try {
    const Config config = Config::load();
    const std::optional<std::uint64_t> limit = config.store_limit;
    if (!limit || registry::store_bytes(wiring.store()) <= *limit) return;
    const registry::EvictResult result = registry::evict(
        wiring.store(),
        {.to = *limit, .offline = config.offline.value_or(false), .unmount_others = unmount_others(wiring)}, progress);
    for (const std::string& warning : result.warnings) progress.warn(warning);
    if (result.after > *limit)
      progress.warn("the store has " + format_size(result.after) + ", more than its limit of " + format_size(*limit) +
                    ": " + held_text(result));
  } catch (const Error& error) {
    progress.warn("the limit of the store is not kept: " + error.message());
  } catch (const std::exception& error) {
    progress.warn(std::string("the limit of the store is not kept: ") + error.what());
  }
}

}  // namespace dsec::cli
