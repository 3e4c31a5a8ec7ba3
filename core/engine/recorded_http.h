#pragma once

#include <cstdint>
#include <functional>

#include "core/engine/http_exchange.h"
#include "core/engine/recording.h"

namespace dsec::engine {

/// Sends a request over the stream that `connect` gives, and records it with the answer, each up to `limit` bytes. With
/// an op_id that is recorded already the recorded answer comes again; throws Error when it was not kept whole.
void record_http(const RecordingPlace& place, std::uint16_t port, const HttpRequest& request, std::uint64_t limit,
                 const HttpSink& sink, const std::function<UniqueFd()>& connect);

}  // namespace dsec::engine
