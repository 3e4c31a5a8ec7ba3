#include "registry/loader/read_record.h"

namespace dsec::registry {

void ReadRecord::note(std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t chunk = first; chunk <= last; ++chunk) {
    if (seen_[chunk]) continue;
    seen_[chunk] = true;
    ++count_;
    if (!runs_.empty() && runs_.back().first + runs_.back().count == chunk)
      ++runs_.back().count;
    else
      runs_.push_back({chunk, 1});
  }
}

}  // namespace dsec::registry
