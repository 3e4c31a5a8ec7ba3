#pragma once

#include <chrono>
#include <memory>

#include "core/http/client.h"
#include "registry/registry.h"

namespace dsec::registry {

/// How long the server of a registry is waited for.
struct Patience {
  std::chrono::milliseconds stall;  ///< for a connection, and then for each next byte
  int tries = 1;                    ///< of a request that fails for a passing reason
};

void limit(http::ClientOptions& options, const Patience& patience);

/// Like open_registry() for reading, for who has others to ask, or somebody who waits. Of a directory only the rings of
/// a 3FS client know patience.
std::unique_ptr<Registry> open_registry(const RegistryAddress& address, const Patience& patience, Progress& progress);

}  // namespace dsec::registry
