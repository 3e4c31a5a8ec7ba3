#pragma once

#include "core/base/json.h"
#include "runners/vm/warm_up.h"

namespace dsec::cli {

/// A saved guest as `dsec vm warm` and `dsec vm snapshot` show it with -o json.
Json snapshot_json(const runners::WarmGuestHere& here);

}  // namespace dsec::cli
