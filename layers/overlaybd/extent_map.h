#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "layers/overlaybd/mapping.h"

namespace dsec::layers::overlaybd {

/// Mappings of a layer that is being written: the last one counts where two overlap. Not thread-safe.
class ExtentMap {
 public:
  void insert(const Mapping& mapping);
  /// Makes one of the mapping that begins at a sector and the one before it, where they go on in the file, too.
  void join(std::uint64_t sector);
  /// In the order of the device.
  std::vector<Mapping> mappings() const;
  /// Those that reach into [from, to), as they are.
  template <typename Visit>
  void visit(std::uint64_t from, std::uint64_t to, Visit&& visit) const {
    for (auto at = first_behind(from); at != mappings_.end() && at->second.offset() < to; ++at) visit(at->second);
  }
  std::size_t size() const noexcept { return mappings_.size(); }

 private:
  using Map = std::map<std::uint64_t, Mapping>;  ///< by their first sector
  /// The first that ends behind a sector.
  Map::const_iterator first_behind(std::uint64_t sector) const;

  Map mappings_;
};

}  // namespace dsec::layers::overlaybd
