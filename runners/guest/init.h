#pragma once

namespace dsec::guest {

/// PID 1 of a sandbox: reaps what its parents left, hands signals of the keeper to everybody, and ends with the keeper.
/// It holds no descriptor, and reads nothing from inside.
int run_init();

}  // namespace dsec::guest
