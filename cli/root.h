#pragma once

#include <string>

namespace dsec::cli {

class Wiring;

/// Throws Error unless we are root; names both stores when sudo would use another one than the user's.
void require_root(const std::string& command);
/// The same for a verb that works on the sandboxes of a context: who may do so there decides the edge.
void require_root(const Wiring& wiring, const std::string& command);

/// Names both stores when sudo took us to root's although the user has one: what was built without sudo is not found
/// with it. Else empty.
std::string sudo_store_note();

}  // namespace dsec::cli
