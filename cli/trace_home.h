#pragma once

#include "cli/wiring.h"
#include "core/base/files.h"

namespace dsec::cli {

/// A home within another one, for a run of which it shall be seen what is read: nothing that is here already serves
/// it, and nothing of it stays.
class TraceHome {
 public:
  explicit TraceHome(const engine::Home& outer);
  ~TraceHome();
  TraceHome(const TraceHome&) = delete;
  TraceHome& operator=(const TraceHome&) = delete;

  Wiring& wiring() { return wiring_; }

  /// Removes those whose makers are gone, with their sandboxes and mounts; tells in `problems` what could not be.
  static void remove_abandoned(const engine::Home& outer, std::vector<std::string>& problems);

 private:
  TempDirectory directory_;
  Wiring wiring_;
};

}  // namespace dsec::cli
