#pragma once

#include <memory>
#include <string_view>

#include "layers/archive/byte_stream.h"

namespace dsec::layers {

class Decoder;

enum class Packing { None, Gzip, Zstd, Xz, Bzip2 };

/// Judged by the first bytes alone: what a name or a media type says is no evidence. `head` should have the first 512
/// bytes where there are so many: an archive may begin with a file whose name looks like a packing's magic number.
Packing packing_of(std::string_view head);

/// What `packed` unpacks to: all members of gzip, all frames of zstd (skippable ones are skipped), all streams of xz
/// and bzip2. `packed` must outlive the result. Throws Error (layer-truncated, layer-damaged).
class UnpackedStream : public ByteStream {
 public:
  explicit UnpackedStream(ByteStream& packed);
  ~UnpackedStream() override;
  std::string_view next() override;
  std::uint64_t skip(std::uint64_t size) override { return decoder_ || !in_.empty() ? 0 : packed_.skip(size); }
  Packing packing() const noexcept { return packing_; }

 private:
  ByteStream& packed_;
  std::string_view in_;  // not consumed yet
  bool last_ = false;    // nothing comes after in_
  Packing packing_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<char[]> out_;
};

}  // namespace dsec::layers
