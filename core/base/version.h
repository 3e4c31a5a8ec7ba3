#pragma once

namespace dsec {

/// The release, as CMake's project() has it: "0.1.0".
extern const char* const kVersion;

}  // namespace dsec
