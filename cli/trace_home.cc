#include "cli/trace_home.h"

#include "core/base/error.h"
#include "core/engine/sandbox_records.h"

namespace dsec::cli {
namespace fs = std::filesystem;
namespace {

// Control groups are named after it: those of the outer home are used.
fs::path with_host_id(const fs::path& directory, const engine::Home& outer) {
  write_file_atomic(directory / "host-id", outer.host_id() + "\n", 0600);
  return directory;
}

void end_all(Wiring& wiring) {
  for (const engine::SandboxInfo& each : wiring.local_engine().list({.all = true}))
    wiring.local_engine().remove(each.id, true);
  engine::sweep_sandboxes(wiring.home(), wiring.runners(), false);
  wiring.mounter().unmount_unused({});
  engine::release_shared(wiring.home(), wiring.runners());
}

}  // namespace

TraceHome::TraceHome(const engine::Home& outer)
    : directory_(outer.cache()), wiring_(with_host_id(directory_.path(), outer)) {}

TraceHome::~TraceHome() {
  try {
    end_all(wiring_);
  } catch (const Error&) {
    // What is left is found by gc.
  }
}

void TraceHome::remove_abandoned(const engine::Home& outer, std::vector<std::string>& problems) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(outer.cache(), gone)) {
    const fs::path& path = entry.path();
    if (!temp_file_is_stale(path.filename().native()) || !fs::exists(path / "host-id", gone)) continue;
    try {
      Wiring wiring(path);
      end_all(wiring);
    } catch (const Error& error) {
      problems.push_back("what a trace left at " + quote(path.native()) + ": " + error.message());
    }
  }
}

}  // namespace dsec::cli
