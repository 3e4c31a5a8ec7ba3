#include "layers/overlaybd/zfile_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "core/base/little_endian.h"
#include "layers/overlaybd/checksum.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::uint64_t kPiece = 1 << 20;          // bytes read at a time
constexpr std::size_t kLength = 4;                 // bytes of a length, and of a checksum
constexpr std::uint64_t kMostBlocks = 1000000000;  // zfile.cpp, MAX_ZFILE_INDEX_SIZE

/// Where each block lies: lengths, and the sum of every so many of them.
class BlockPlaces {
 public:
  void add(std::uint32_t length) {
    if (lengths_.size() % kGroup == 0) sums_.push_back(end_);
    lengths_.push_back(length);
    end_ += length;
  }
  std::uint64_t begin_of(std::uint64_t block) const {
    if (block == lengths_.size()) return end_;
    std::uint64_t place = sums_[block / kGroup];
    for (std::uint64_t i = block / kGroup * kGroup; i < block; ++i) place += lengths_[i];
    return place;
  }
  std::uint32_t length(std::uint64_t block) const { return lengths_[block]; }
  std::uint64_t end() const noexcept { return end_; }

 private:
  static constexpr std::uint64_t kGroup = 32;
  std::vector<std::uint32_t> lengths_;
  std::vector<std::uint64_t> sums_;
  std::uint64_t end_ = ZfileHeader::kSize;
};

class Zfile : public RandomBytes {
 public:
  Zfile(std::unique_ptr<RandomBytes> packed, const ZfileHeader& header, BlockPlaces places)
      : RandomBytes(packed->name(), header.original_size),
        packed_(std::move(packed)),
        compression_(static_cast<Compression>(header.compression)),
        block_size_(header.block_size),
        checksum_(header.has_checksums ? kLength : 0),
        places_(std::move(places)) {}

 private:
  void read_within(std::uint64_t offset, char* buffer, std::size_t size) const override {
    std::string piece;
    while (size > 0) {
      const std::uint64_t first = offset / block_size_;
      // As many blocks as fit into a piece, one at least.
      std::uint64_t last = first;
      std::uint64_t bytes = places_.length(first);
      const std::uint64_t final = (offset + size - 1) / block_size_;
      while (last < final && bytes + places_.length(last + 1) <= kPiece) bytes += places_.length(++last);
      piece.resize(bytes);
      packed_->read(places_.begin_of(first), piece.data(), piece.size());
      std::string_view rest = piece;
      for (std::uint64_t block = first; block <= last; ++block) {
        const std::size_t taken = unpack(block, rest.substr(0, places_.length(block)), offset, buffer, size);
        rest.remove_prefix(places_.length(block));
        offset += taken;
        buffer += taken;
        size -= taken;
      }
    }
  }

  /// Copies what of a block is wanted from `offset` on; returns how much that was.
  std::size_t unpack(std::uint64_t block, std::string_view packed, std::uint64_t offset, char* buffer,
                     std::size_t size) const {
    verify(block, packed);
    packed.remove_suffix(checksum_);
    const std::uint64_t begin = block * block_size_;
    const std::size_t whole = std::min<std::uint64_t>(block_size_, this->size() - begin);
    const std::size_t skipped = offset - begin, wanted = std::min(whole - skipped, size);
    if (wanted == whole) {
      unpack(block, packed, buffer, whole);
    } else {
      std::string bytes(whole, '\0');
      unpack(block, packed, bytes.data(), whole);
      std::memcpy(buffer, bytes.data() + skipped, wanted);
    }
    return wanted;
  }
  void unpack(std::uint64_t block, std::string_view packed, char* buffer, std::size_t size) const {
    if (!unpack_block(compression_, packed, buffer, size))
      throw damaged("block " + std::to_string(block) + " does not unpack to " + std::to_string(size) + " bytes");
  }
  void verify(std::uint64_t block, std::string_view packed) const {
    if (checksum_ == 0) return;
    const std::string_view bytes = packed.substr(0, packed.size() - kLength);
    if (Fields(packed.substr(bytes.size())).u32(0) != plain_crc32c(kBlockSeed, bytes))
      throw damaged("the checksum of block " + std::to_string(block) + " is wrong");
  }

  std::unique_ptr<RandomBytes> packed_;
  Compression compression_;
  std::uint64_t block_size_;
  std::size_t checksum_;  ///< bytes of it behind each block
  BlockPlaces places_;
};

ZfileHeader read_header(const RandomBytes& packed, std::uint64_t at, const char* what) {
  bool intact = false;
  const auto header = ZfileHeader::parse(packed.read(at, ZfileHeader::kSize), intact);
  if (!header) throw packed.damaged(std::string("it has no ") + what);
  if (!intact) throw packed.damaged(std::string("the checksum of its ") + what + " is wrong");
  return *header;
}

/// What counts of header and trailer, and where the lengths must have ended.
ZfileHeader read_facts(const RandomBytes& packed, std::uint64_t& end) {
  ZfileHeader header = read_header(packed, 0, "header");
  if (!header.is_header || !header.is_data) throw packed.damaged("its header is none of a data file");
  end = packed.size();
  if (header.is_final) return header;
  if (packed.size() < 2 * ZfileHeader::kSize) throw packed.damaged("it is too short for a trailer");
  end = packed.size() - ZfileHeader::kSize;
  ZfileHeader trailer = read_header(packed, end, "trailer");
  if (trailer.is_header || !trailer.is_data || !trailer.is_sealed)
    throw packed.damaged("its trailer is none of a finished file");
  return trailer;
}

void check(const RandomBytes& packed, const ZfileHeader& header, std::uint64_t end) {
  const auto refuse = [&](const std::string& what) { return failure(packed.name() + " " + what); };
  if (header.compression != static_cast<std::uint8_t>(Compression::Lz4) &&
      header.compression != static_cast<std::uint8_t>(Compression::Zstd))
    throw refuse("is compressed in a way that dsec does not know (" + std::to_string(header.compression) + ")");
  if (header.has_dictionary) throw refuse("is compressed with a dictionary, which dsec does not read");
  if (header.compressed_index) throw refuse("has a compressed table of blocks, which dsec does not read");
  if (!std::has_single_bit(header.block_size) || header.block_size < ZfileHeader::kLeastBlock ||
      header.block_size > ZfileHeader::kMostBlock)
    throw packed.damaged("its blocks are of " + std::to_string(header.block_size) + " bytes");
  if (header.index_count > kMostBlocks)
    throw packed.damaged("it tells of " + std::to_string(header.index_count) + " blocks");
  if (header.index_offset > end || header.index_count * kLength > end - header.index_offset)
    throw packed.damaged("the table of its " + std::to_string(header.index_count) + " blocks does not fit into it");
  const std::uint64_t needed =
      header.original_size / header.block_size + (header.original_size % header.block_size != 0);
  if (header.index_count != needed)
    throw packed.damaged("it tells of " + std::to_string(header.index_count) + " blocks, and its size needs " +
                         std::to_string(needed));
}

BlockPlaces read_places(const RandomBytes& packed, const ZfileHeader& header) {
  const std::size_t checksum = header.has_checksums ? kLength : 0;
  const std::uint64_t most = largest_block(static_cast<Compression>(header.compression), header.block_size) + checksum;
  BlockPlaces places;
  std::uint32_t sum = 0;
  for (std::uint64_t done = 0; done < header.index_count * kLength;) {
    const std::string piece = packed.read(
        header.index_offset + done, static_cast<std::size_t>(std::min(kPiece, header.index_count * kLength - done)));
    sum = plain_crc32c(sum, piece);
    const Fields fields(piece);
    for (std::size_t at = 0; at < piece.size(); at += kLength) {
      const std::uint32_t length = fields.u32(at);
      if (length <= checksum || length > most)
        throw packed.damaged("block " + std::to_string((done + at) / kLength) + " has a length of " +
                             std::to_string(length));
      places.add(length);
    }
    done += piece.size();
  }
  if (header.has_digest && sum != header.index_checksum)
    throw packed.damaged("the checksum of the table of its blocks is wrong");
  if (places.end() != header.index_offset)
    throw packed.damaged("its blocks end at byte " + std::to_string(places.end()) + ", and their table begins at " +
                         std::to_string(header.index_offset));
  return places;
}

}  // namespace

bool is_zfile(const RandomBytes& bytes) {
  bool intact = false;
  return bytes.size() >= ZfileHeader::kSize &&
         ZfileHeader::parse(bytes.read(0, ZfileHeader::kSize), intact).has_value();
}

std::unique_ptr<RandomBytes> open_zfile(std::unique_ptr<RandomBytes> packed, ZfileFacts& facts) {
  std::uint64_t end = 0;
  const ZfileHeader header = read_facts(*packed, end);
  check(*packed, header, end);
  BlockPlaces places = read_places(*packed, header);
  facts = {.compression = static_cast<Compression>(header.compression),
           .block_size = header.block_size,
           .has_checksums = header.has_checksums};
  return std::make_unique<Zfile>(std::move(packed), header, std::move(places));
}

}  // namespace dsec::layers::overlaybd
