#pragma once

#include "runners/guest/config.h"

namespace dsec::guest {

/// Makes the namespaces and PID 1 of a sandbox, and everything that it finds there: /proc, /dev, mounts, masks. Two
/// calls, since PID 1 goes on by itself up to where it needs the root: config.read_root belongs between them. PID 1
/// shares the caller's memory and descriptors until then. `alive` is the reading end of a pipe whose other end only the
/// keeper has, `keeper` a pidfd of the caller. False with `failure` set: there is nothing to finish.
bool begin_init(const Config& config, int alive, int keeper, Failure& failure);
/// Returns PID 1's pid when it runs, or -1 with `failure` set; then nothing of it is left, as when it gets no root.
int finish_init(bool with_root, Failure& failure);

/// Of a sandbox with kStartLater: mounts what was left for its first command. False with `failure` set; then it can be
/// tried again.
bool add_late_mounts(const Config& config, int init_pidfd, Failure& failure);

/// What PID 1 and commands give up for good. Each returns false with `failure` set.
/// Dropping from the bounding set needs CAP_SETPCAP and so comes before the rest.
bool drop_bounding(uint64_t keep, Failure& failure);
/// Effective and permitted become `keep`; inheritable and ambient become empty.
bool limit_capabilities(uint64_t keep, Failure& failure);
/// Needs no_new_privs.
bool install_filter(const Config& config, Failure& failure);

}  // namespace dsec::guest
