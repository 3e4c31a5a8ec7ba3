#pragma once

#include <memory>

#include "core/base/progress.h"

namespace dsec::cli {

/// Progress on standard error: bars that replace each other on a terminal, plain lines elsewhere.
std::unique_ptr<Progress> make_progress(bool quiet);

}  // namespace dsec::cli
