#pragma once

#include <filesystem>

#include "core/engine/runner.h"

namespace dsec::engine {

/// A runner whose sandboxes can be saved with all that runs in them, and go on elsewhere.
class MemorySaver {
 public:
  virtual ~MemorySaver() = default;
  /// Puts what a sandbox that lives is at one moment, its memory, devices and disk, into the empty directory `into`. It
  /// stands still meanwhile, and goes on in any case. Throws Error.
  virtual void save_memory(const std::filesystem::path& directory, const std::filesystem::path& into) = 0;
  /// As Runner::start, of a sandbox that goes on from what lies in `saved`, as one of its own; any number of them may.
  virtual RunnerStatus restore(RunnerRequest request, const std::filesystem::path& saved) = 0;
};

}  // namespace dsec::engine
