#pragma once

#include <string>
#include <string_view>

#include "core/base/json.h"

namespace dsec {

/// Well-formed: no overlong forms, surrogates or values above U+10FFFF.
bool is_utf8(std::string_view bytes);

std::string base64(std::string_view bytes);
/// Throws Error (Usage) when `text` is no base64 with padding.
std::string from_base64(std::string_view text);

/// Any bytes in JSON: a string when they are UTF-8, else {"base64": "…"}.
Json json_bytes(std::string_view bytes);
/// The inverse; throws Error (Usage).
std::string bytes_of_json(const Json& value);

}  // namespace dsec
