#pragma once

#include <stdint.h>

#include "runners/guest/config.h"

namespace dsec::guest {

constexpr unsigned kMaxGroups = 64;

/// Who a command runs as, in ids seen inside.
struct User {
  uint32_t uid, gid;
  uint32_t group_count;
  uint32_t groups[kMaxGroups];
  char name[64];  ///< as asked for, cut; for messages
  char home[256];
};

/// Resolves "user", "uid", "user:group" or "" (root) by the sandbox's own /etc/passwd and /etc/group, read from outside
/// below `root`: nothing there is executed, followed out of the root, or waited for. A number needs no entry. False
/// when a name is unknown; then `failure` says which.
bool find_user(int root, const char* wanted, User& user, Failure& failure);

}  // namespace dsec::guest
