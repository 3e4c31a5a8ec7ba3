#include "registry/blob_download.h"

#include <algorithm>

#include "core/base/units.h"

namespace dsec::registry {

Error missing_blob(const Blob& blob) {
  return failure("the registry does not have blob " + blob.digest.str())
      .hint("publish the layer again from a host that has it");
}

Digest download_blob(const Blob& blob, const std::function<void(std::string_view)>& sink,
                     const std::function<void(std::uint64_t)>& advance, const ReadBlob& read) {
  Sha256 hash;
  std::uint64_t done = 0;
  http::Download download(blob.size, [&](std::string_view piece) {
    sink(piece);
    hash.update(piece);
    done += piece.size();
    advance(done);
  });
  if (!read(download)) throw missing_blob(blob);
  return hash.finish();
}

void download_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes, const ReadBlob& read,
                    std::chrono::milliseconds within) {
  const auto start = std::chrono::steady_clock::now();
  auto to = bytes.begin();
  http::Download download(offset, bytes.size(), blob.size, [&](std::string_view piece) {
    // A server that never stops for long may still give next to nothing.
    if (within.count() > 0 && std::chrono::steady_clock::now() - start > within)
      throw failure("the registry gave " + format_size(static_cast<std::uint64_t>(to - bytes.begin())) + " of " +
                    format_size(bytes.size()) + " within " + format_duration(within) + ", which is too slow");
    const auto from = std::as_bytes(std::span(piece));
    to = std::copy(from.begin(), from.end(), to);
  });
  if (!read(download)) throw missing_blob(blob);
}

std::chrono::milliseconds whole_of(const std::optional<Patience>& patience) {
  return patience ? 8 * patience->stall : std::chrono::milliseconds(0);
}

}  // namespace dsec::registry
