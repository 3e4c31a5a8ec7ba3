#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/model/layer_manifest.h"

namespace dsec::registry {

/// Chunks of a blob that follow each other; in a list, pieces of kChunkSize, however large the blob's own chunks are.
struct ChunkRun {
  std::uint64_t first = 0, count = 0;
  bool operator==(const ChunkRun&) const = default;
};

/// A longer one is neither written nor read; of a longer record the beginning is kept.
inline constexpr std::size_t kMostPrefetchRuns = 32'768;
inline constexpr std::uint64_t kLargestPrefetchList = 1 << 20;

/// Which pieces of a layer are to be fetched before anybody asks for them, in this order: what `dsec registry trace`
/// publishes beside the layer (man/dsec-registry.5.md). Whoever published it, following it costs no more than bytes.
struct PrefetchList {
  struct OfBlob {
    Digest blob;
    std::vector<ChunkRun> runs;
    bool operator==(const OfBlob&) const = default;
  };
  Digest layer;
  std::vector<OfBlob> blobs;

  std::string text() const;
  /// Throws Error unless it is a list of that layer in every detail: of its data blobs alone, each chunk within its
  /// blob, and none twice.
  static PrefetchList parse(std::string_view text, const Digest& layer, const LayerManifest& manifest);
};

/// The same bytes of a blob of `size` bytes in pieces of another size: all that they are a part of.
std::vector<ChunkRun> resized(std::span<const ChunkRun> runs, std::size_t from, std::size_t to, std::uint64_t size);

/// "[[first,count],…]".
Json to_json(std::span<const ChunkRun> runs);
/// Throws Error unless each is of chunks that a blob of so many has, none twice, and they are not too many.
std::vector<ChunkRun> runs_from_json(const Json& json, std::uint64_t chunks);

/// How many chunks these are.
std::uint64_t chunks_in(std::span<const ChunkRun> runs);

}  // namespace dsec::registry
