#pragma once

#include <string>

#include "registry/directory/registry_root.h"

namespace dsec::registry {

/// Whether catalogue.json names what the directory holds; one that cannot be read does not. A registry without layers
/// needs none.
bool catalogue_is_current(const RegistryRoot& root);

/// Writes catalogue.json where it is not current, and looks again until it is: so that of several publishers the last
/// to write it has seen what all of them published. The temporary file is named after `publisher`.
void write_catalogue(const RegistryRoot& root, const std::string& publisher);

}  // namespace dsec::registry
