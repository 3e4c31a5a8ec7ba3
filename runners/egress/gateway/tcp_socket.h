#pragma once

namespace dsec::egress {

/// A peer that is gone without a word is noticed within minutes, and nothing waits to be sent together.
void keep_alive(int socket);

/// With `on` the end of a connection is a reset, also when this process is killed: what was cut off must not look
/// whole.
void end_by_reset(int socket, bool on);

}  // namespace dsec::egress
