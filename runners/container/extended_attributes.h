#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runners/isolation/id_map.h"

namespace dsec::runners {

using ExtendedAttributes = std::vector<std::pair<std::string, std::string>>;

/// What overlayfs marks a directory with whose names alone are to be seen, with the value "y".
inline constexpr char kOpaqueAttribute[] = "trusted.overlay.opaque";

/// Those of an open file that travel with it: user.*, security.capability and POSIX ACLs, with ids as seen inside.
/// What cannot be read is left out: not every filesystem has them.
ExtendedAttributes read_attributes(int file, const IdMap& ids);

/// Sets those of the list that travel; others are passed over, so that a stream cannot set what the sandbox could not.
/// Throws Error naming the attribute; filesystems without attributes are no error.
void write_attributes(int file, const ExtendedAttributes& attributes, const IdMap& ids);

}  // namespace dsec::runners
