#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/engine/recording.h"

namespace dsec::engine {

/// Takes a picture of a screen and records it, with its content as far as `limit` bytes go. With an op_id that is
/// recorded the picture of then comes again. Throws Error.
std::string record_screenshot(const RecordingPlace& place, std::uint64_t limit, const OperationContext& context,
                              const std::function<std::string()>& take);

}  // namespace dsec::engine
