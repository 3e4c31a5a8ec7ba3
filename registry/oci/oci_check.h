#pragma once

#include "registry/check.h"

namespace dsec::registry {

/// check_registry() of an OCI registry: what tags and the repository of all layers name. Throws Error (Usage) for a
/// repair, and where the registry shows no catalogue.
CheckResult check_oci(const RegistryAddress& address, const CheckOptions& options, Progress& progress);

}  // namespace dsec::registry
