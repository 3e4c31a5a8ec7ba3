#pragma once

#include <string>
#include <vector>

#include "core/base/variables.h"

namespace dsec::registry {

/// What of a caller's environment decides how registries are reached, and as whom: logins and keys, and where they and
/// the configuration are. man/dsec-loader.7.md has the list.
const std::vector<std::string>& caller_variables();

/// Those of them that are set, relative paths made absolute: who reads them works in another directory.
Variables variables_of_caller();

}  // namespace dsec::registry
