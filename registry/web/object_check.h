#pragma once

#include "registry/check.h"

namespace dsec::registry {

/// check_registry() of a web server or a bucket: what tags and manifests name, and in a bucket what they do not. Throws
/// Error (Usage) for a repair.
CheckResult check_objects(const RegistryAddress& address, const CheckOptions& options, Progress& progress);

}  // namespace dsec::registry
