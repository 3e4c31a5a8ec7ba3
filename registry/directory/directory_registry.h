#pragma once

#include <chrono>

#include "registry/registry.h"

namespace dsec::registry {

/// A registry in a directory or on 3FS. A publisher announces its blobs in a lease; each file is written under a
/// temporary name, flushed, read back and compared, and only then named; a name that exists is never written again.
/// `progress` outlives it, and is told why a 3FS mount is read in the slower way.
/// `ring_patience` is how long its quicker way may give nothing.
std::unique_ptr<Registry> open_directory_registry(const RegistryAddress& address, OpenMode mode, Progress& progress,
                                                  std::chrono::milliseconds ring_patience = std::chrono::seconds(5));

}  // namespace dsec::registry
