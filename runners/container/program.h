#pragma once

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// dsec-init as processes of sandboxes run it: a copy in sealed memory, which nothing can write any more, with a mode
/// that lets anybody execute and nobody of a user namespace read it, so that the kernel keeps its processes closed to
/// ptrace and /proc/<pid>/mem. Found beside the running program, else in ../libexec/dsec. Throws Error when it is not
/// there.
UniqueFd load_guest_program();

/// A program of dsec's own, found there too, open for reading. Throws Error when it is not there.
UniqueFd open_own_program(const char* name);

}  // namespace dsec::runners
