#include "layers/archive/decoder.h"

#include <bzlib.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "core/base/error.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

// What xz -9 needs is 65 MiB; a header may ask for 4 GiB.
constexpr std::uint64_t kXzMemory = 512ull << 20;
constexpr int kZstdWindow = 31;  // as a power of 2

[[noreturn]] void damaged(const char* format, const char* reason) {
  throw refusal(Refusal::Damaged,
                std::string("the ") + format + " data is damaged: " + (reason ? reason : "unknown reason"));
}

[[noreturn]] void no_memory() { throw system_error("allocate a decompressor", ENOMEM); }

/// The libraries' counters are 32 bits wide, and pieces may be larger.
template <typename Count>
Count clamp(std::size_t size) {
  return static_cast<Count>(std::min<std::size_t>(size, 1u << 30));
}

char* unconst(const char* bytes) { return const_cast<char*>(bytes); }

class GzipDecoder : public Decoder {
 public:
  GzipDecoder() {
    // 15 bits of window, and 16 to expect gzip's header and verify its sums.
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) no_memory();
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }

  std::size_t step(std::string_view& in, char* out, std::size_t size, bool) override {
    if (ended_ && !next_member(in)) return 0;
    stream_.next_in = reinterpret_cast<Bytef*>(unconst(in.data()));
    stream_.avail_in = clamp<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = clamp<uInt>(size);
    const uInt in_before = stream_.avail_in, out_before = stream_.avail_out;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    in.remove_prefix(in_before - stream_.avail_in);
    if (code == Z_MEM_ERROR) no_memory();
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) damaged("gzip", stream_.msg);
    ended_ = code == Z_STREAM_END;
    return out_before - stream_.avail_out;
  }
  bool may_end() const override { return ended_; }

 private:
  /// Archives on tapes and in some registries are padded with zeros; anything else must be another member.
  bool next_member(std::string_view& in) {
    while (!in.empty() && in.front() == '\0') in.remove_prefix(1);
    if (in.empty()) return false;
    if (in.front() != '\x1f') damaged("gzip", "bytes follow its end");
    if (inflateReset(&stream_) != Z_OK) no_memory();
    ended_ = false;
    return true;
  }

  z_stream stream_{};
  bool ended_ = false;
};

class ZstdDecoder : public Decoder {
 public:
  ZstdDecoder() {
    // All that zstd --long makes: memory is taken as the window fills, so that only what has such content costs it.
    if (!stream_ || ZSTD_isError(ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kZstdWindow))) no_memory();
  }

  std::size_t step(std::string_view& in, char* out, std::size_t size, bool) override {
    if (in.empty() && ended_) return 0;
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out, size, 0};
    const std::size_t code = ZSTD_decompressStream(stream_.get(), &output, &input);
    if (ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation) no_memory();
    if (ZSTD_isError(code)) damaged("zstd", ZSTD_getErrorName(code));
    in.remove_prefix(input.pos);
    ended_ = code == 0;
    return output.pos;
  }
  bool may_end() const override { return ended_; }

 private:
  struct Deleter {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<ZSTD_DStream, Deleter> stream_{ZSTD_createDStream()};
  bool ended_ = false;
};

class XzDecoder : public Decoder {
 public:
  XzDecoder() {
    if (lzma_stream_decoder(&stream_, kXzMemory, LZMA_CONCATENATED) != LZMA_OK) no_memory();
  }
  ~XzDecoder() override { lzma_end(&stream_); }

  std::size_t step(std::string_view& in, char* out, std::size_t size, bool last) override {
    if (ended_) {
      if (!in.empty()) damaged("xz", "bytes follow its end");
      return 0;
    }
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
    stream_.avail_in = in.size();
    stream_.next_out = reinterpret_cast<std::uint8_t*>(out);
    stream_.avail_out = size;
    const lzma_ret code = lzma_code(&stream_, last ? LZMA_FINISH : LZMA_RUN);
    in.remove_prefix(in.size() - stream_.avail_in);
    switch (code) {
      case LZMA_OK:
      case LZMA_BUF_ERROR:
        break;
      case LZMA_STREAM_END:
        ended_ = true;
        break;
      case LZMA_MEM_ERROR:
        no_memory();
      case LZMA_MEMLIMIT_ERROR:
        damaged("xz", "it asks for more than 512 MiB of memory");
      case LZMA_OPTIONS_ERROR:
        damaged("xz", "it uses options that this liblzma does not know");
      default:
        damaged("xz", "its checks fail");
    }
    return size - stream_.avail_out;
  }
  bool may_end() const override { return ended_; }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ended_ = false;
};

class Bzip2Decoder : public Decoder {
 public:
  Bzip2Decoder() { begin(); }
  ~Bzip2Decoder() override { BZ2_bzDecompressEnd(&stream_); }

  std::size_t step(std::string_view& in, char* out, std::size_t size, bool) override {
    if (ended_) {
      if (in.empty()) return 0;
      BZ2_bzDecompressEnd(&stream_);
      begin();
    }
    stream_.next_in = unconst(in.data());
    stream_.avail_in = clamp<unsigned>(in.size());
    stream_.next_out = out;
    stream_.avail_out = clamp<unsigned>(size);
    const unsigned in_before = stream_.avail_in, out_before = stream_.avail_out;
    const int code = BZ2_bzDecompress(&stream_);
    in.remove_prefix(in_before - stream_.avail_in);
    if (code == BZ_MEM_ERROR) no_memory();
    if (code != BZ_OK && code != BZ_STREAM_END) damaged("bzip2", "its checks fail");
    ended_ = code == BZ_STREAM_END;
    return out_before - stream_.avail_out;
  }
  bool may_end() const override { return ended_; }

 private:
  void begin() {
    stream_ = {};
    if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK) no_memory();
    ended_ = false;
  }

  bz_stream stream_{};
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<Decoder> Decoder::make(Packing packing) {
  switch (packing) {
    case Packing::None:
      return nullptr;
    case Packing::Gzip:
      return std::make_unique<GzipDecoder>();
    case Packing::Zstd:
      return std::make_unique<ZstdDecoder>();
    case Packing::Xz:
      return std::make_unique<XzDecoder>();
    case Packing::Bzip2:
      return std::make_unique<Bzip2Decoder>();
  }
  return nullptr;
}

}  // namespace dsec::layers
