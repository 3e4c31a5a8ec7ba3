#pragma once

#include <optional>

#include "registry/patience.h"

namespace dsec::registry {

/// A registry behind a web server, which can only be read, or in a bucket. Throws Error (Usage) for OpenMode::Write of
/// the first.
std::unique_ptr<Registry> open_web_registry(const RegistryAddress& address, OpenMode mode, Progress& progress,
                                            const std::optional<Patience>& patience = {});

}  // namespace dsec::registry
