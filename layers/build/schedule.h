#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace dsec::layers {

/// Runs `work(i)` for i in 0..count-1, each after those in `after[i]`, at most `jobs` at the same time. The first
/// exception stops further starts and is thrown when what was under way has ended. `after` must have no ring.
void run_in_order(std::size_t count, const std::vector<std::vector<std::size_t>>& after, std::size_t jobs,
                  const std::function<void(std::size_t)>& work);

}  // namespace dsec::layers
