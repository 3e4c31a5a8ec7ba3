#pragma once

#include <memory>
#include <string>

#include "cli/output.h"
#include "core/base/progress.h"

namespace dsec::cli {

class Wiring;

/// One run of dsec, as its command sees it: where results and progress go, and what stands behind.
class Invocation {
 public:
  Invocation(Wiring& wiring, Format format) : wiring_(wiring), out_(format) {}

  Output& out() { return out_; }
  /// On standard error; made when first asked for.
  Progress& progress();
  /// Ends the progress display, so that other programs may write to the terminal.
  void end_progress() { progress_.reset(); }
  /// Store, mounter, engine; each made when first asked for, so that a command touches only what it needs.
  Wiring& wiring() { return wiring_; }

  /// The exit code when nothing is thrown.
  void exit_with(int code) noexcept { exit_code_ = code; }
  int exit_code() const noexcept { return exit_code_; }

 private:
  Wiring& wiring_;
  Output out_;
  std::unique_ptr<Progress> progress_;
  int exit_code_ = 0;
};

}  // namespace dsec::cli
