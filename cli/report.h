#pragma once

#include <ostream>

#include "cli/output.h"
#include "core/base/error.h"

namespace dsec::cli {

/// Exit codes of DESIGN's table; man/dsec.1.md shows it.
inline constexpr int kOk = 0, kFailed = 1, kMisused = 2, kDifference = 3, kDsecFailed = 125;

/// 1, or 2 for a wrong request; 125 for both where the exit code belongs to a command in a sandbox.
int exit_code(ErrorKind kind, bool status_passed_on) noexcept;

/// Tells a person, or with Json a program, what was attempted, why it failed and what to do: once, from main.
void report(const Error& error, Format format, std::ostream& err);

}  // namespace dsec::cli
