#pragma once

#include <filesystem>
#include <string>

#include "registry/loader/holder.h"

namespace dsec::registry {

/// The serving process: answers the filesystem and the socket, until nobody needs it. `ready` is written to when it
/// serves. Returns when it shall end, after telling the holder. Throws Error when it cannot begin.
void serve(const LoaderDescriptors& descriptors, UniqueFd link, UniqueFd ready, const std::string& program,
           const std::filesystem::path& home);

}  // namespace dsec::registry
