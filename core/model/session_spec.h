#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/operation_context.h"

namespace dsec {

/// A long-lived shell in a sandbox; man/dsec-session.1.md tells what it keeps between commands.
struct SessionSpec {
  std::string name;              ///< optional, unique among the sandbox's sessions, no number
  std::string shell;             ///< "bash", "sh" or an absolute path; empty: bash where there is one, else sh
  std::vector<std::string> env;  ///< "NAME=value", over the sandbox's
  std::string workdir, user;     ///< empty: the sandbox's
  bool tty = false;              ///< its commands have a terminal instead of streams apart
  std::uint16_t rows = 24, columns = 80;
  std::optional<std::uint64_t> output_limit;  ///< over limits.output
  OperationContext operation;
};

/// A command for the shell of a session.
struct SessionCommand {
  std::string text;                       ///< as a script would have it: any lines, no NUL, at most 3 MiB
  bool open_stdin = false;                ///< the caller will write to its standard input; else it reads end of file
  bool detach = false;                    ///< nobody reads now
  std::uint16_t rows = 24, columns = 80;  ///< of the session's terminal, if it has one
  std::optional<std::chrono::milliseconds> timeout;
  std::optional<std::uint64_t> output_limit;
  OperationContext operation;
};

}  // namespace dsec
