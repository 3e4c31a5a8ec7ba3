#pragma once

#include "core/base/json.h"
#include "runners/vm/kernel_store.h"

namespace dsec::cli {

/// A kernel as `dsec vm kernel` shows it with -o json.
Json kernel_json(const runners::GuestKernel& kernel);

}  // namespace dsec::cli
