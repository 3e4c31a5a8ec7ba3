#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/http/message.h"
#include "core/model/layer_manifest.h"

namespace dsec::registry {

/// Reads a blob over HTTP into what it is given; false when the blob is not there.
using ReadBlob = std::function<bool(http::Download&)>;

/// Hands a whole blob to `sink`, piece by piece, and returns the digest of what came. `advance` is told the bytes done.
Digest download_blob(const Blob& blob, const std::function<void(std::string_view)>& sink,
                     const std::function<void(std::uint64_t)>& advance, const ReadBlob& read);
/// Fills `bytes` with what the blob has at `offset`.
void download_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes, const ReadBlob& read);

/// That the registry does not have it.
Error missing_blob(const Blob& blob);

}  // namespace dsec::registry
