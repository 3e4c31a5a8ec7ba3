#pragma once

#include <string>

namespace dsec::cli {

/// Throws Error unless we are root; names both stores when sudo would use another one than the user's.
void require_root(const std::string& command);

/// Warns on standard error that sudo changed the store, when the user has one of their own that is not the one in use:
/// what was built without sudo is not found with it.
std::string sudo_store_note();

}  // namespace dsec::cli
