#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "layers/dir/scrub.h"
#include "layers/source.h"

namespace dsec::layers {

/// A range of ids that a writable layer was written with, and what they are inside.
struct IdRange {
  std::uint32_t inside = 0, outside = 0, count = 0;
};

struct UpperRequest {
  std::filesystem::path upper;  ///< overlayfs's upperdir; the overlay is unmounted or nothing runs on it
  /// The composed lower tree, mounted, when it is at hand: a deletion of what is not there is then left out, and so is
  /// the opacity that overlayfs gives to every new folder.
  std::optional<std::filesystem::path> lower;
  Scrub scrub;
  /// How ids on disk become ids of the layer; empty: as they are, which is right for an id-mapped upperdir. An id
  /// outside of all ranges is refused.
  std::vector<IdRange> ids;
  /// Becomes the identity of the source: of whatever decided the content. Then the content is read once, when it is
  /// sent. Empty: it is the digest of the tree.
  std::optional<Digest> identity = {};
};

/// What is in the writable layer of a sandbox, with its deletions: devices 0:0 and files with the xattr
/// overlay.whiteout become whiteouts, folders with overlay.opaque "y" opaque ones, from trusted.overlay. as well as
/// user.overlay. names. A renamed folder or a metadata-only copy (redirect, metacopy) is refused, since neither can
/// stand by itself. Throws Error when `upper` is no folder.
std::unique_ptr<Source> open_upper_source(UpperRequest request);

}  // namespace dsec::layers
