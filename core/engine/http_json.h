#pragma once

#include <cstdint>

#include "core/base/json.h"
#include "core/engine/http_exchange.h"

namespace dsec::engine {

/// An HTTP request as its record has it: of a body its size and digest.
Json http_json(const HttpRequest& request, std::uint16_t port);
/// The inverse, without the body. Throws Error (Usage).
HttpRequest http_request_from(const Json& json, std::uint16_t& port);

}  // namespace dsec::engine
