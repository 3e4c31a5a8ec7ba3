#include "layers/overlaybd/sealed_layer.h"

#include <algorithm>

namespace dsec::layers::overlaybd {
namespace {

constexpr std::uint64_t kMostMappings = 1'000'000;  // lsmt/index.h, MAX_LSMT_RO_INDEX_SIZE
constexpr std::uint64_t kPiece = 1 << 20;           // bytes read at a time

std::vector<Mapping> read_mappings(const RandomBytes& bytes, const LayerHeader& trailer) {
  const std::uint64_t end = bytes.size() - LayerHeader::kSize;
  if (trailer.index_count > kMostMappings)
    throw bytes.damaged("it tells of " + std::to_string(trailer.index_count) + " mappings, more than a layer has");
  const std::uint64_t size = trailer.index_count * Mapping::kSize;
  if (trailer.index_offset < LayerHeader::kSize || trailer.index_offset > end || size > end - trailer.index_offset)
    throw bytes.damaged("its " + std::to_string(trailer.index_count) + " mappings at byte " +
                        std::to_string(trailer.index_offset) + " do not lie between header and trailer");
  std::vector<Mapping> mappings;
  for (std::uint64_t done = 0; done < size;) {
    const std::string piece =
        bytes.read(trailer.index_offset + done, static_cast<std::size_t>(std::min(kPiece, size - done)));
    for (std::size_t at = 0; at < piece.size(); at += Mapping::kSize)
      if (const Mapping mapping = Mapping::parse(piece.data() + at); !mapping.is_filler())
        mappings.push_back(mapping.in_layer(0));
    done += piece.size();
  }
  const std::string fault = fault_of(mappings, LayerHeader::kSize / kSector, trailer.index_offset / kSector);
  if (!fault.empty()) throw bytes.damaged(fault);
  return mappings;
}

}  // namespace

SealedLayer::SealedLayer(LayerFile file) : file_(std::move(file)) {
  const RandomBytes& bytes = *file_.bytes;
  const LayerHeader header = read_layer_header(bytes);
  const auto trailer = read_layer_trailer(bytes);
  if (!header.is_data)
    throw failure(bytes.name() + " is the index of a writable layer").hint("give its data file before it");
  if (!trailer && !header.is_sealed)
    throw failure(bytes.name() + " is a writable layer that is not sealed")
        .hint("give its index file after it, or make a sealed layer of it with dsec obd commit");
  if (!trailer) throw bytes.damaged("it has no trailer");
  check_device_size(bytes, trailer->size);
  facts_ = *trailer;
  mappings_ = read_mappings(bytes, facts_);
}

}  // namespace dsec::layers::overlaybd
