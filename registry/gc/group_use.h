#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

/// Layers that belong together, and what they take.
struct GroupUse {
  std::string name;             ///< "base"; path of a dsec.lock; empty: layers that no set names
  std::uint64_t layers = 0;     ///< that are in the store
  std::uint64_t missing = 0;    ///< that a set names and the store does not have
  std::uint64_t bytes = 0;      ///< of their blobs here, each once
  std::uint64_t alone = 0;      ///< of those that no other group has
  std::uint64_t on_demand = 0;  ///< of data that comes when it is read
};

/// By kind of layer, in the order of the kinds.
std::vector<GroupUse> use_by_kind(LocalStore& store);
/// By task set: each registered dsec.lock, sorted, and what none of them names.
std::vector<GroupUse> use_by_set(LocalStore& store);

}  // namespace dsec::registry
