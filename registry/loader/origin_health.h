#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

/// Which registries failed lately: they are asked last, and not by everybody. Thread-safe.
class OriginHealth {
 public:
  /// After this a registry that failed counts as sound again.
  explicit OriginHealth(std::chrono::milliseconds memory = std::chrono::seconds(60)) : memory_(memory) {}

  void tell(const std::string& registry, bool answered);
  bool failed_lately(const std::string& registry) const;
  bool all_failed_lately(const std::vector<BlobOrigin>& origins) const;
  /// Those that failed lately behind the others; otherwise as they are.
  std::vector<BlobOrigin> in_order(std::vector<BlobOrigin> origins) const;

 private:
  const std::chrono::milliseconds memory_;
  mutable std::mutex mutex_;
  std::map<std::string, std::chrono::steady_clock::time_point> failed_;  ///< when
};

}  // namespace dsec::registry
