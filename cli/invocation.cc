#include "cli/invocation.h"

#include "cli/progress.h"

namespace dsec::cli {

Progress& Invocation::progress() {
  // Beside JSON a program reads the output: it gets the result and warnings only.
  if (!progress_) progress_ = make_progress(out_.json());
  return *progress_;
}

}  // namespace dsec::cli
