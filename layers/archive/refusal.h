#pragma once

#include <string>
#include <string_view>

#include "core/base/error.h"

namespace dsec::layers {

/// Why an input is refused; the words of man/dsec-import.1.md, which scripts may look for in the message.
enum class Refusal {
  Truncated,         ///< the input ends in the middle
  Damaged,           ///< bytes that do not follow their format
  DigestMismatch,    ///< a blob's bytes are not those that its descriptor names
  SizeMismatch,      ///< a blob's size is not the one that its descriptor names
  DiffIdMismatch,    ///< a layer unpacks to something else than the image config says
  BlobMissing,       ///< a blob, manifest or config that is named but not there
  ReferenceMissing,  ///< no image has the wanted name
  PlatformMissing,   ///< no image is for the wanted platform
  NoImage,           ///< well formed, but no image that can be unpacked
  PathEscapesRoot,   ///< an entry would land outside, or be written through a symlink of its own archive
  HardlinkTarget,    ///< a hard link to nothing, or to a directory
  NotRepresentable,  ///< an entry that no tree here can hold
  SizeLimit,         ///< more unpacked bytes than allowed
  EntryLimit,        ///< more entries, or more bytes of names and attributes, than allowed
  PathLimit,         ///< a longer path than allowed
};

/// "path-escapes-root".
std::string_view to_string(Refusal kind);

/// The Error of a refused input: "KIND: WHAT".
Error refusal(Refusal kind, std::string_view what);

}  // namespace dsec::layers
