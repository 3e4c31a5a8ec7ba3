#pragma once

#include <string>

namespace dsec::remote {

/// What a client says to an edge, from a file: one line of 16 to 512 visible characters, in a file that only its owner
/// can read. Throws Error.
std::string read_token(const std::string& file);

}  // namespace dsec::remote
