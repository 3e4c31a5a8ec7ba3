#pragma once

#include "registry/check.h"

namespace dsec::registry {

/// check_registry() of a directory or of 3FS.
CheckResult check_directory(const RegistryAddress& address, const CheckOptions& options, Progress& progress);

}  // namespace dsec::registry
