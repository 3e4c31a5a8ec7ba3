#include "layers/archive/decompress.h"

#include <utility>

#include "layers/archive/decoder.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_header.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kPiece = 256 << 10;

bool is_zstd_skippable(std::string_view head) {
  return head.size() >= 4 && (static_cast<unsigned char>(head[0]) & 0xf0) == 0x50 &&
         head.substr(1, 3) == "\x2a\x4d\x18";
}

}  // namespace

Packing packing_of(std::string_view head) {
  using namespace std::string_view_literals;
  if (head.size() >= kTarBlock && TarHeader(head.substr(0, kTarBlock)).checksum_fits()) return Packing::None;
  if (head.starts_with("\x1f\x8b"sv)) return Packing::Gzip;
  if (head.starts_with("\x28\xb5\x2f\xfd"sv) || is_zstd_skippable(head)) return Packing::Zstd;
  if (head.starts_with("\xfd\x37\x7a\x58\x5a\0"sv)) return Packing::Xz;
  if (head.starts_with("BZh"sv) && head.size() > 3 && head[3] >= '1' && head[3] <= '9') return Packing::Bzip2;
  return Packing::None;
}

UnpackedStream::UnpackedStream(ByteStream& packed)
    : packed_(packed), in_(packed.next()), packing_(packing_of(in_)), decoder_(Decoder::make(packing_)) {
  if (decoder_) out_.reset(new char[kPiece]);
}

UnpackedStream::~UnpackedStream() = default;

std::string_view UnpackedStream::next() {
  if (!decoder_) return in_.empty() ? packed_.next() : std::exchange(in_, {});
  for (;;) {
    if (in_.empty() && !last_) {
      in_ = packed_.next();
      last_ = in_.empty();
    }
    const std::size_t left = in_.size();
    if (const std::size_t got = decoder_->step(in_, out_.get(), kPiece, last_)) return {out_.get(), got};
    if (!last_ || in_.size() < left) continue;
    if (decoder_->may_end()) return {};
    throw refusal(Refusal::Truncated, "the packed data ends in the middle");
  }
}

}  // namespace dsec::layers
