#include "layers/overlaybd/extent_map.h"

namespace dsec::layers::overlaybd {

ExtentMap::Map::const_iterator ExtentMap::first_behind(std::uint64_t sector) const {
  auto at = mappings_.upper_bound(sector);
  if (at == mappings_.begin()) return at;
  const auto before = std::prev(at);
  return before->second.end() > sector ? before : at;
}

void ExtentMap::insert(const Mapping& mapping) {
  for (auto at = first_behind(mapping.offset()); at != mappings_.end() && at->second.offset() < mapping.end();) {
    const Mapping old = at->second;
    at = mappings_.erase(at);
    if (old.offset() < mapping.offset())
      mappings_.emplace_hint(at, old.offset(), old.part(old.offset(), mapping.offset()));
    if (old.end() > mapping.end()) {
      mappings_.emplace_hint(at, mapping.end(), old.part(mapping.end(), old.end()));
      break;
    }
  }
  mappings_.insert_or_assign(mapping.offset(), mapping);
}

void ExtentMap::join(std::uint64_t sector) {
  const auto at = mappings_.find(sector);
  if (at == mappings_.end() || at == mappings_.begin()) return;
  if (std::prev(at)->second.join(at->second)) mappings_.erase(at);
}

std::vector<Mapping> ExtentMap::mappings() const {
  std::vector<Mapping> all;
  all.reserve(mappings_.size());
  for (const auto& [offset, mapping] : mappings_) all.push_back(mapping);
  return all;
}

}  // namespace dsec::layers::overlaybd
