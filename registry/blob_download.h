#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/http/message.h"
#include "core/model/layer_manifest.h"
#include "registry/patience.h"

namespace dsec::registry {

/// Reads a blob over HTTP into what it is given; false when the blob is not there.
using ReadBlob = std::function<bool(http::Download&)>;

/// Hands a whole blob to `sink`, piece by piece, and returns the digest of what came. `advance` is told the bytes done.
Digest download_blob(const Blob& blob, const std::function<void(std::string_view)>& sink,
                     const std::function<void(std::uint64_t)>& advance, const ReadBlob& read);
/// Fills `bytes` with what the blob has at `offset`. Throws Error when it comes so slowly, in however many attempts,
/// that it is not here `within` this time; 0: as long as it takes.
void download_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes, const ReadBlob& read,
                    std::chrono::milliseconds within = std::chrono::milliseconds(0));
/// How long that is for who has patience: readers have been answered by then, one way or another.
std::chrono::milliseconds whole_of(const std::optional<Patience>& patience);

/// That the registry does not have it.
Error missing_blob(const Blob& blob);

}  // namespace dsec::registry
