#pragma once

#include <map>
#include <string>

#include "layers/source.h"

namespace dsec::layers {

/// An EROFS image of nothing but directories, as bytes: the path of each with its attributes (mode, owner, time,
/// xattrs). The root ("") and the parents of all must be among them. The same directories make the same bytes; mounting
/// it needs no data blob. At most 65,536 of them.
std::string make_directory_image(const std::map<std::string, Entry>& directories);

}  // namespace dsec::layers
