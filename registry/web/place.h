#pragma once

#include <memory>
#include <optional>

#include "registry/patience.h"
#include "registry/web/object_place.h"

namespace dsec::registry {

/// The place of an Http or S3 address. Throws Error when there is no registry; Write makes one of a prefix that has
/// nothing below it.
std::unique_ptr<ObjectPlace> open_place(const RegistryAddress& address, OpenMode mode, Progress& progress,
                                        const std::optional<Patience>& patience = {});
/// The same for reading, trying but once; throws Error.
void ping_place(const RegistryAddress& address);

}  // namespace dsec::registry
