#pragma once

#include <sys/socket.h>

#include <vector>

#include "core/base/unique_fd.h"

namespace dsec {

/// Those that came with a message of recvmsg(); once.
std::vector<UniqueFd> take_descriptors(msghdr& message);

}  // namespace dsec
