#pragma once

#include "runners/guest/config.h"

namespace dsec::guest {

/// Makes the namespaces and PID 1 of a sandbox, and everything that it finds there: root, /dev, /proc, mounts, masks.
/// Returns PID 1's pid, or -1 with `failure` set; then nothing of it runs. `alive` is the reading end of a pipe whose
/// other end only the keeper has.
int start_init(const Config& config, int alive, Failure& failure);

/// What PID 1 and commands give up for good. Each returns false with `failure` set.
/// Dropping from the bounding set needs CAP_SETPCAP and so comes before the rest.
bool drop_bounding(uint64_t keep, Failure& failure);
/// Effective and permitted become `keep`; inheritable and ambient become empty.
bool limit_capabilities(uint64_t keep, Failure& failure);
/// Needs no_new_privs.
bool install_filter(const Config& config, Failure& failure);

}  // namespace dsec::guest
