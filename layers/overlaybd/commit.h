#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/progress.h"
#include "layers/overlaybd/layer_output.h"
#include "layers/overlaybd/stack.h"

namespace dsec::layers::overlaybd {

/// What a new layer is told to be; what is absent comes from the layers it is made of.
struct NewLayer {
  std::optional<std::string> uuid, parent;  ///< as in uuid.h
  std::string message;
  Packing packing;
};

struct Written {
  std::uint64_t bytes = 0;  ///< of the file
  std::uint64_t size = 0;   ///< of the device
  std::size_t mappings = 0;
  std::string uuid, parent;
};

/// Writes one sealed layer of all that the layers of a stack have: what is overwritten is left behind, what none of
/// them has is not in it. It has the UUID of the highest and the parent of the lowest. `fd` is an empty file.
Written commit(const Stack& stack, int fd, const NewLayer& layer, Progress& progress);

}  // namespace dsec::layers::overlaybd
