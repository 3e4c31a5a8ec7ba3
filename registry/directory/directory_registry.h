#pragma once

#include "registry/registry.h"

namespace dsec::registry {

/// A registry in a directory or on 3FS. A publisher announces its blobs in a lease; each file is written under a
/// temporary name, flushed, read back and compared, and only then named; a name that exists is never written again.
std::unique_ptr<Registry> open_directory_registry(const RegistryAddress& address, OpenMode mode);

}  // namespace dsec::registry
