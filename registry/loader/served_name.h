#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/digest.h"

namespace dsec::registry {

/// A blob as it is served: by the chunk digests that its bytes are compared with. Layers that name the same blob with
/// other chunk digests have another file, another inode and another cache: what a lying layer lets pass is its own.
struct ServedName {
  Digest blob, chunks;

  /// "HEX-HEX".
  std::string str() const { return blob.hex() + "-" + chunks.hex(); }
  static std::optional<ServedName> parse(std::string_view text) {
    if (text.size() != 129 || text[64] != '-' || !Digest::valid_hex(text.substr(0, 64)) ||
        !Digest::valid_hex(text.substr(65)))
      return std::nullopt;
    return ServedName{Digest::parse(text.substr(0, 64)), Digest::parse(text.substr(65))};
  }
  auto operator<=>(const ServedName&) const = default;
};

}  // namespace dsec::registry
