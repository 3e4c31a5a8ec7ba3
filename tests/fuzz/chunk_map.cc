// The map of a chunk cache, as it may lie on a disk after a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "registry/loader/chunk_map.h"
#include "registry/store/chunk_digests.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec::registry;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (size < 128) return ChunkMap::parse(bytes, kChunkSize) ? (std::abort(), 0) : 0;
  // Blobs that a map of about this size could be of.
  for (const std::uint64_t chunks :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{8}, (std::uint64_t{size} - 128) * 8}) {
    for (const std::uint64_t blob : {chunks * kChunkSize, chunks * kLargeChunkSize}) {
      const auto map = ChunkMap::parse(bytes, blob);
      if (!map) continue;
      // What is accepted is what would be written, and counts no more chunks than there are.
      if (map->bytes() != bytes || map->present() > map->chunks() || map->has(map->chunks())) std::abort();
    }
  }
  return 0;
}
