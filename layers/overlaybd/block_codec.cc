#include "layers/overlaybd/block_codec.h"

#include <lz4.h>
#include <zstd.h>

#include <memory>

#include "core/base/error.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr int kZstdLevel = 3;  // compressor.cpp, Compressor_zstd::cLevel

struct FreeDecompressor {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};
struct FreeCompressor {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

// Making one for each block would cost more than the block.
ZSTD_DCtx* decompressor() {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeDecompressor> context(ZSTD_createDCtx());
  if (!context) throw failure("cannot allocate a decompressor");
  return context.get();
}

ZSTD_CCtx* compressor() {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeCompressor> context(ZSTD_createCCtx());
  if (!context) throw failure("cannot allocate a compressor");
  return context.get();
}

}  // namespace

std::string_view to_string(Compression compression) { return compression == Compression::Lz4 ? "lz4" : "zstd"; }

std::size_t largest_block(Compression compression, std::size_t size) {
  if (compression == Compression::Zstd) return ZSTD_compressBound(size);
  return static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(size)));
}

void compress_block(Compression compression, std::string_view block, std::string& packed) {
  packed.resize(largest_block(compression, block.size()));
  if (compression == Compression::Lz4) {
    const int size = LZ4_compress_default(block.data(), packed.data(), static_cast<int>(block.size()),
                                          static_cast<int>(packed.size()));
    if (size <= 0) throw failure("LZ4 did not compress a block");
    return packed.resize(static_cast<std::size_t>(size));
  }
  const std::size_t size =
      ZSTD_compressCCtx(compressor(), packed.data(), packed.size(), block.data(), block.size(), kZstdLevel);
  if (ZSTD_isError(size)) throw failure(std::string("Zstandard did not compress a block: ") + ZSTD_getErrorName(size));
  packed.resize(size);
}

bool unpack_block(Compression compression, std::string_view packed, char* block, std::size_t size) {
  if (compression == Compression::Lz4)
    return LZ4_decompress_safe(packed.data(), block, static_cast<int>(packed.size()), static_cast<int>(size)) ==
           static_cast<int>(size);
  return ZSTD_decompressDCtx(decompressor(), block, size, packed.data(), packed.size()) == size;
}

}  // namespace dsec::layers::overlaybd
