#pragma once

#include <string>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// What the gateway gets of a sandbox's network namespace: sockets that were made inside.
struct EgressSockets {
  UniqueFd tcp;         ///< listens; accepted sockets have the address that was connected to as their own
  UniqueFd udp;         ///< tells the address that was sent to
  UniqueFd raw4, raw6;  ///< for answers from any address
};

/// Gives a network namespace (its descriptor, or the pidfd of a process in it) its only way out: every address is local
/// to its loopback device, and what is not for the sandbox itself goes to the two sockets; everything else is dropped.
/// May be repeated: the new sockets take the place of the old ones. Throws Error saying what this kernel does not have.
EgressSockets open_egress(int place);

/// The same in a new namespace that ends at once: whether this kernel can. Empty, or the reason why not.
std::string probe_egress();

}  // namespace dsec::runners
