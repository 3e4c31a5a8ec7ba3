#pragma once

#include <optional>

#include "registry/patience.h"

namespace dsec::registry {

/// Layers as artifacts in an OCI registry (man/dsec-oci.5.md): the repository of the URL holds every layer under a tag
/// made of its digest, and the one of the layer's name below it holds the layer under its tags.
std::unique_ptr<Registry> open_oci_registry(const RegistryAddress& address, Progress& progress,
                                            const std::optional<Patience>& patience = {});

/// Throws Error when the host does not answer as a registry that lets us in; tries but once.
void ping_oci_registry(const RegistryAddress& address);

}  // namespace dsec::registry
