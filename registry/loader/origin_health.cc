#include "registry/loader/origin_health.h"

#include <algorithm>

namespace dsec::registry {

void OriginHealth::tell(const std::string& registry, bool answered) {
  const std::lock_guard lock(mutex_);
  if (answered)
    failed_.erase(registry);
  else
    failed_[registry] = std::chrono::steady_clock::now();
}

bool OriginHealth::failed_lately(const std::string& registry) const {
  const std::lock_guard lock(mutex_);
  const auto found = failed_.find(registry);
  return found != failed_.end() && std::chrono::steady_clock::now() - found->second < memory_;
}

bool OriginHealth::all_failed_lately(const std::vector<BlobOrigin>& origins) const {
  return std::all_of(origins.begin(), origins.end(),
                     [&](const BlobOrigin& each) { return failed_lately(each.registry); });
}

std::vector<BlobOrigin> OriginHealth::in_order(std::vector<BlobOrigin> origins) const {
  std::stable_partition(origins.begin(), origins.end(),
                        [&](const BlobOrigin& each) { return !failed_lately(each.registry); });
  return origins;
}

}  // namespace dsec::registry
