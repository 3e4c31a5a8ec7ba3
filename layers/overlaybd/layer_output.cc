#include "layers/overlaybd/layer_output.h"

#include <bit>
#include <vector>

#include "core/base/error.h"
#include "core/base/little_endian.h"
#include "layers/overlaybd/checksum.h"
#include "layers/overlaybd/tar_wrap.h"
#include "layers/overlaybd/write_at.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::size_t kBuffer = 1 << 20;  // bytes collected before they are written

/// The file itself, from `begin` on.
class PlainOutput : public LayerOutput {
 public:
  PlainOutput(int fd, std::uint64_t begin) : fd_(fd), begin_(begin) { buffer_.reserve(kBuffer); }
  void write(std::string_view bytes) override {
    buffer_ += bytes;
    if (buffer_.size() >= kBuffer) drain();
  }
  std::uint64_t finish() override {
    drain();
    return done_;
  }
  void write_over(std::uint64_t offset, std::string_view bytes) { write_at(fd_, begin_ + offset, bytes); }

 private:
  void drain() {
    write_at(fd_, begin_ + done_, buffer_);
    done_ += buffer_.size();
    buffer_.clear();
  }

  int fd_;
  std::uint64_t begin_, done_ = 0;
  std::string buffer_;
};

class ZfileOutput : public LayerOutput {
 public:
  ZfileOutput(int fd, std::uint64_t begin, Compression compression, std::uint32_t block_size)
      : out_(fd, begin), compression_(compression) {
    header_.compression = static_cast<std::uint8_t>(compression);
    header_.block_size = block_size;
    out_.write(header_.bytes());
  }

  void write(std::string_view bytes) override {
    header_.original_size += bytes.size();
    while (!bytes.empty()) {
      if (rest_.empty() && bytes.size() >= header_.block_size) {
        put_block(bytes.substr(0, header_.block_size));
        bytes.remove_prefix(header_.block_size);
        continue;
      }
      const std::string_view part = bytes.substr(0, header_.block_size - rest_.size());
      rest_ += part;
      bytes.remove_prefix(part.size());
      if (rest_.size() < header_.block_size) return;
      put_block(rest_);
      rest_.clear();
    }
  }

  std::uint64_t finish() override {
    if (!rest_.empty()) put_block(rest_);
    header_.index_offset = end_;
    header_.index_count = lengths_.size() / 4;
    header_.index_checksum = plain_crc32c(0, lengths_);
    header_.is_header = false;
    header_.is_sealed = true;
    out_.write(lengths_);
    out_.write(header_.bytes());
    const std::uint64_t size = out_.finish();
    header_.is_header = header_.is_final = true;
    header_.is_sealed = false;
    out_.write_over(0, header_.bytes());
    return size;
  }

 private:
  void put_block(std::string_view block) {
    compress_block(compression_, block, packed_);
    append_u32(packed_, plain_crc32c(kBlockSeed, packed_));
    out_.write(packed_);
    append_u32(lengths_, static_cast<std::uint32_t>(packed_.size()));
    end_ += packed_.size();
  }
  static void append_u32(std::string& bytes, std::uint32_t number) {
    bytes.resize(bytes.size() + 4);
    put_u32(bytes, bytes.size() - 4, number);
  }

  PlainOutput out_;
  Compression compression_;
  ZfileHeader header_;
  std::string rest_, packed_, lengths_;
  std::uint64_t end_ = ZfileHeader::kSize;
};

class TarOutput : public LayerOutput {
 public:
  TarOutput(int fd, std::unique_ptr<LayerOutput> inner) : fd_(fd), inner_(std::move(inner)) {}
  void write(std::string_view bytes) override { inner_->write(bytes); }
  std::uint64_t finish() override { return finish_tar(fd_, inner_->finish()); }

 private:
  int fd_;
  std::unique_ptr<LayerOutput> inner_;
};

}  // namespace

std::optional<Compression> Packing::parse_compression(std::string_view text) {
  if (text == "none") return std::nullopt;
  if (text == "zfile:lz4") return Compression::Lz4;
  if (text == "zfile:zstd") return Compression::Zstd;
  throw usage_error(quote(text) + " is no compression of layers").hint("one of none, zfile:lz4, zfile:zstd");
}

std::unique_ptr<LayerOutput> make_layer_output(int fd, const Packing& packing) {
  if (!std::has_single_bit(packing.block_size) || packing.block_size < ZfileHeader::kLeastBlock ||
      packing.block_size > ZfileHeader::kMostWritten)
    throw usage_error("blocks of " + std::to_string(packing.block_size) + " bytes cannot be compressed")
        .hint("one of 4KiB, 8KiB, 16KiB, 32KiB");
  const std::uint64_t begin = packing.tar ? kTarPrologue : 0;
  std::unique_ptr<LayerOutput> output;
  if (packing.compression)
    output = std::make_unique<ZfileOutput>(fd, begin, *packing.compression, packing.block_size);
  else
    output = std::make_unique<PlainOutput>(fd, begin);
  if (packing.tar) output = std::make_unique<TarOutput>(fd, std::move(output));
  return output;
}

}  // namespace dsec::layers::overlaybd
