#pragma once

#include "core/model/layer_manifest.h"
#include "layers/dockerfile/dockerfile.h"

namespace dsec::layers::dockerfile {

/// What a HEALTHCHECK means; it takes no variables. Throws Error (Usage).
HealthCheck parse_health_check(const Instruction& instruction);

/// "1m30s", "1.5h", "250ms" as nanoseconds. Throws Error (Usage).
std::int64_t parse_go_duration(std::string_view text);

/// A list of words in JSON; empty when `text` is none.
std::optional<std::vector<std::string>> json_words(const std::string& text);

}  // namespace dsec::layers::dockerfile
