#pragma once

#include "cli/output.h"
#include "core/engine/engine.h"

namespace dsec::cli {

struct AttendOptions {
  bool tty = false;              ///< the command has a TTY: raw keys in, window size follows
  bool stdin_open = false;       ///< the command was started with open_stdin
  Format format = Format::Text;  ///< Json: one event a line on standard output
  bool only_stderr = false;      ///< of Text: its standard output goes to our standard error, too
};

/// Blocks the signals that a foreground command gets instead of dsec. Make it before the command is started, so that a
/// signal in between is not lost; the mask is that of the calling thread and of all it starts.
class ForwardedSignals {
 public:
  ForwardedSignals();
  ~ForwardedSignals();
  ForwardedSignals(const ForwardedSignals&) = delete;
  ForwardedSignals& operator=(const ForwardedSignals&) = delete;
};

/// Stands between a command in a sandbox and whoever typed it until the command ends: its output to ours, our input,
/// signals and window size to it. When nobody reads our output any more the command gets SIGPIPE, then SIGKILL.
ExecResult attend(engine::ExecStream& stream, const AttendOptions& options);

}  // namespace dsec::cli
