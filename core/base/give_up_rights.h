#pragma once

#include <sys/types.h>

namespace dsec {

inline constexpr uid_t kNobody = 65534;  ///< of Linux; the group has the same number

/// For good: this process, which has one thread, has no capability any more and can get none, is nobody where it was
/// root, and cannot be looked into by others of the same user. Throws Error.
void give_up_rights();

}  // namespace dsec
