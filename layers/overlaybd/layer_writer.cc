#include "layers/overlaybd/layer_writer.h"

#include <algorithm>

#include "core/base/error.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::uint64_t kPiece = 64;  // sectors under a mapping before they are joined; lsmt/file.cpp, pcopy
constexpr std::size_t kGroup = 4096 / Mapping::kSize;  // the table is filled up to a multiple; lsmt/file.cpp, compact
constexpr std::size_t kMostMappings = 1'000'000;       // lsmt/index.h, MAX_LSMT_RO_INDEX_SIZE

}  // namespace

LayerWriter::LayerWriter(LayerOutput& output, LayerHeader facts) : output_(output), facts_(std::move(facts)) {
  facts_.is_header = facts_.is_data = facts_.is_sealed = true;
  facts_.is_sparse = false;
  facts_.index_offset = facts_.index_count = 0;
  output_.write(facts_.bytes());
}

void LayerWriter::add(const Mapping& mapping) {
  if (!mappings_.empty() && mappings_.back().join(mapping)) return;
  if (mappings_.size() / kGroup * kGroup + kGroup > kMostMappings)
    throw failure("the layer would have more than " + std::to_string(kMostMappings) +
                  " mappings, and no reader takes it")
        .hint("write the device anew in larger pieces, or keep it as more layers");
  mappings_.push_back(mapping);
}

void LayerWriter::data(std::uint64_t sector, std::string_view bytes, std::uint8_t layer) {
  output_.write(bytes);
  for (std::uint64_t rest = bytes.size() / kSector; rest > 0;) {
    const std::uint64_t length = std::min(kPiece, rest);
    add({sector, static_cast<std::uint32_t>(length), place_, false, layer});
    sector += length;
    place_ += length;
    rest -= length;
  }
}

void LayerWriter::zeros(std::uint64_t sector, std::uint64_t count, std::uint8_t layer) {
  while (count > 0) {
    const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(Mapping::kMaxLength, count));
    add({sector, length, place_, true, layer});
    sector += length;
    count -= length;
  }
}

std::uint64_t LayerWriter::finish() {
  std::string table;
  for (const Mapping& mapping : mappings_) mapping.append_to(table);
  const std::size_t count = (mappings_.size() + kGroup - 1) / kGroup * kGroup;
  for (std::size_t i = mappings_.size(); i < count; ++i) Mapping::filler().append_to(table);
  output_.write(table);
  facts_.is_header = false;
  facts_.index_offset = place_ * kSector;
  facts_.index_count = count;
  output_.write(facts_.bytes());
  return output_.finish();
}

}  // namespace dsec::layers::overlaybd
