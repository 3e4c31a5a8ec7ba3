#pragma once

#include <string>
#include <vector>

#include "core/base/error.h"

namespace dsec {
struct ExecResult;
}

namespace dsec::cli {

/// --status-file: who decided the exit code ("command", "timeout" or "dsec") and why, as one JSON object, since a
/// command may well exit with 124 or 125 itself. Replaced atomically; an empty path writes nothing.
void write_status(const std::string& path, const ExecResult& result);

/// The same when dsec failed, perhaps before it knew its options: the path is looked for in `args`. A status file that
/// cannot be written is one line more on standard error.
void write_status_of_failure(const std::vector<std::string>& args, int exit_code, const Error& error);

/// "of a limit of 64.0 MiB the most used was 63.9 MiB", of a result with oom_kills.
std::string describe_memory(const ExecResult& result);

/// "signal 9 (KILL)", "timed out", …: how a command ended, in words.
std::string describe_end(const ExecResult& result);

}  // namespace dsec::cli
