#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/progress.h"
#include "core/model/layer_manifest.h"
#include "registry/check.h"

namespace dsec::registry {

/// Reads a whole blob, tells the bytes done, and returns the digest of what came. Throws Error.
using ReadWhole = std::function<Digest(const std::function<void(std::uint64_t)>& advance)>;

/// Compares a blob that a manifest names with what a registry has of it, `size` bytes or nothing, and adds to `result`
/// what is wrong. Where the size is right and `read` is set, its bytes are compared, too. Throws what `read` throws.
void check_named_blob(const Blob& blob, std::optional<std::uint64_t> size, const ReadWhole& read, CheckResult& result,
                      Progress& progress);

}  // namespace dsec::registry
