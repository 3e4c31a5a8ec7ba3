// A list of chunks to fetch first, as any registry may answer it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "registry/layout/prefetch_list.h"
#include "registry/store/chunk_digests.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec;
  using namespace dsec::registry;
  static const Digest layer = Digest::of("layer"), blob = Digest::of("data");
  static const LayerManifest manifest = [] {
    LayerManifest made;
    made.images = {LayerImage{.blobs = {{BlobRole::Data, blob, 9 * kChunkSize + 1},
                                        {BlobRole::Chunks, Digest::of("chunks"), 10 * kRawDigestSize}}}};
    return made;
  }();
  try {
    const PrefetchList list = PrefetchList::parse({reinterpret_cast<const char*>(data), size}, layer, manifest);
    for (const PrefetchList::OfBlob& each : list.blobs) {
      if (each.blob != blob || chunks_in(each.runs) > 10) std::abort();
      for (const ChunkRun& run : each.runs)
        if (run.count == 0 || run.first + run.count > 10) std::abort();
    }
    // What is accepted comes back from what is written of it.
    if (PrefetchList::parse(list.text(), layer, manifest).blobs != list.blobs) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
