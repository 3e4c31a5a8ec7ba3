#pragma once

#include <linux/sched.h>
#include <stddef.h>

namespace dsec::runners {

/// clone3(2). The child runs `run(argument)` on its own stack, [stack, stack + size), and exits with what it returns:
/// with CLONE_VM it must touch nothing that the parent does not expect. Returns the child's pid or a negative errno.
/// Here for dsec as well, whose C library has no wrapper for it.
long clone_on_stack(clone_args& args, void* stack, size_t size, int (*run)(void*), void* argument);

}  // namespace dsec::runners
