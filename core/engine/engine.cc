#include "core/engine/engine.h"

namespace dsec::engine {

std::string_view to_string(SandboxState state) {
  switch (state) {
    case SandboxState::Creating:
      return "creating";
    case SandboxState::Running:
      return "running";
    case SandboxState::Paused:
      return "paused";
    case SandboxState::Stopped:
      return "stopped";
    case SandboxState::Failed:
      return "failed";
    case SandboxState::Orphaned:
      return "orphaned";
  }
  return "unknown";
}

}  // namespace dsec::engine
