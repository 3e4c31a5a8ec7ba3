#include "core/engine/file_watch.h"

namespace dsec::engine {

std::string_view to_string(FileEvent::Kind kind) {
  switch (kind) {
    case FileEvent::Kind::Created:
      return "created";
    case FileEvent::Kind::Modified:
      return "modified";
    case FileEvent::Kind::Closed:
      return "closed";
    case FileEvent::Kind::Attributes:
      return "attributes";
    case FileEvent::Kind::Deleted:
      return "deleted";
    case FileEvent::Kind::Moved:
      return "moved";
    case FileEvent::Kind::Overflow:
      return "overflow";
    case FileEvent::Kind::Ended:
      return "ended";
  }
  return "unknown";
}

}  // namespace dsec::engine
