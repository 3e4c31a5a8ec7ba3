#pragma once

#include <stdint.h>

/// The memory of a machine that goes on from a saved one (Config::machine_memory_fd).
namespace dsec::guest {

/// Of the process that becomes the VMM: from now on the keeper is asked where it opens its memory. Returns the
/// descriptor at which that comes, or a negative errno.
long install_memory_filter();
/// Answers, until the VMM has it.
void watch_memory_requests(int requests);
void on_memory_request(uint32_t events);

}  // namespace dsec::guest
