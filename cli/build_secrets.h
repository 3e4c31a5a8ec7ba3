#pragma once

#include <map>
#include <string>
#include <vector>

#include "layers/build/build_secret.h"

namespace dsec::cli {

/// Values of --secret. Throws Error (Usage), also for an id that stands twice.
std::map<std::string, layers::BuildSecret> parse_secrets(const std::vector<std::string>& texts);

}  // namespace dsec::cli
