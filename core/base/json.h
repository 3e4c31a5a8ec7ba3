#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dsec {

/// Keys are sorted and that is what makes dump() canonical.
using Json = nlohmann::json;

/// Throws Error (Usage) "ORIGIN:LINE:COLUMN: …" when `text` is no JSON; duplicate keys and nesting deeper than 64 are
/// refused.
Json parse_json(std::string_view text, std::string_view origin);

/// The canonical bytes: sorted keys, no spaces, UTF-8 (bytes that are none are escaped as U+FFFD).
std::string canonical_json(const Json& value);

/// Typed members of an object; a missing or wrongly typed one throws Error (Usage) naming it.
std::string json_string(const Json& object, const char* key);
std::uint64_t json_u64(const Json& object, const char* key);
/// The same with a default for a missing or null member.
std::string json_string_or(const Json& object, const char* key, std::string fallback);
std::uint64_t json_u64_or(const Json& object, const char* key, std::uint64_t fallback);

}  // namespace dsec
