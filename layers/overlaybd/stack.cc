#include "layers/overlaybd/stack.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "core/base/files.h"
#include "layers/overlaybd/layer_input.h"

namespace dsec::layers::overlaybd {
namespace {

// A writable layer is never wrapped, so its header is at the very beginning.
std::optional<LayerHeader> plain_header(const RandomBytes& bytes) {
  if (bytes.size() < LayerHeader::kSize) return std::nullopt;
  const auto header = LayerHeader::parse(bytes.read(0, LayerHeader::kSize));
  return header && header->is_header ? header : std::nullopt;
}

// The first that ends behind a sector.
std::vector<Mapping>::const_iterator first_behind(const std::vector<Mapping>& mappings, std::uint64_t sector) {
  return std::upper_bound(mappings.begin(), mappings.end(), sector,
                          [](std::uint64_t wanted, const Mapping& mapping) { return wanted < mapping.end(); });
}

}  // namespace

Stack::Stack(std::vector<SealedLayer> sealed, std::unique_ptr<WritableLayer> top)
    : sealed_(std::move(sealed)), top_(std::move(top)) {
  if (sealed_.empty() && !top_) throw usage_error("no layer is given");
  if (sealed_.size() > kMostSealed)
    throw failure(std::to_string(sealed_.size()) + " sealed layers are given, and a device has at most " +
                  std::to_string(kMostSealed))
        .hint("make one of some of them with dsec obd commit");
  for (const SealedLayer& layer : sealed_)
    if (layer.facts().size > 0) size_ = layer.facts().size;
  if (top_ && top_->facts().size > 0) size_ = top_->facts().size;
  merge_sealed();
}

void Stack::merge_sealed() {
  std::vector<std::vector<Mapping>> layers;
  for (std::size_t i = 0; i < sealed_.size(); ++i) {
    std::vector<Mapping>& mappings = layers.emplace_back(sealed_[i].mappings());
    const auto number = static_cast<std::uint8_t>(sealed_.size() - 1 - i);
    for (Mapping& mapping : mappings) mapping = mapping.in_layer(number);
  }
  merged_ = merge(std::move(layers));
}

void Stack::rise(SealedLayer sealed, std::unique_ptr<WritableLayer> top) {
  for (Mapping& mapping : merged_) mapping = mapping.in_layer(static_cast<std::uint8_t>(mapping.layer() + 1));
  merged_ = lay_over(sealed.mappings(), merged_);
  sealed_.push_back(std::move(sealed));
  top_ = std::move(top);
}

void Stack::replace(std::size_t first, std::size_t count, SealedLayer layer) {
  const auto begin = sealed_.begin() + static_cast<std::ptrdiff_t>(first);
  *begin = std::move(layer);
  sealed_.erase(begin + 1, begin + static_cast<std::ptrdiff_t>(count));
  merge_sealed();
}

std::vector<LayerFiles> group_layer_files(std::span<const std::filesystem::path> files) {
  std::vector<LayerFiles> layers;
  for (const std::filesystem::path& path : files) {
    const auto bytes = file_bytes(open_input(path), quote(path.native()));
    const auto header = plain_header(*bytes);
    if (header && !header->is_data && !layers.empty() && !layers.back().writable) {
      layers.back().index = path;
      layers.back().writable = true;
      continue;
    }
    if (!layers.empty() && layers.back().writable)
      throw usage_error("only the highest layer may be a writable one, and " + bytes->name() + " is above one");
    const bool sparse = header && header->is_sparse && !header->is_sealed && !read_layer_trailer(*bytes);
    layers.push_back({.data = path, .index = {}, .writable = sparse});
  }
  return layers;
}

Stack Stack::open(std::span<const std::filesystem::path> files, WritableLayer::Access access) {
  std::vector<SealedLayer> sealed;
  std::unique_ptr<WritableLayer> top;
  for (const LayerFiles& layer : group_layer_files(files))
    if (layer.writable)
      top = std::make_unique<WritableLayer>(layer.data, layer.index, access);
    else
      sealed.emplace_back(open_layer_file(layer.data));
  return {std::move(sealed), std::move(top)};
}

const LayerHeader& Stack::highest() const noexcept { return top_ ? top_->facts() : sealed_.back().facts(); }
const LayerHeader& Stack::lowest() const noexcept { return sealed_.empty() ? top_->facts() : sealed_.front().facts(); }

void Stack::visit_sealed(std::uint64_t begin, std::uint64_t end,
                         const std::function<void(const Mapping&)>& visit) const {
  for (auto at = first_behind(merged_, begin); at != merged_.end() && at->offset() < end; ++at)
    visit(at->part(begin, end));
}

void Stack::visit(std::uint64_t offset, std::uint64_t size, const std::function<void(const Run&)>& visit) const {
  if (offset > size_ || size > size_ - offset)
    throw failure(std::to_string(size) + " bytes at " + std::to_string(offset) + " are beyond the device's end");
  const std::uint64_t last = offset + size;
  std::uint64_t done = offset;
  // Sectors to bytes, and what nobody has between them.
  const auto tell = [&](const Mapping& mapping) {
    const std::uint64_t begin = std::max(mapping.offset() * kSector, offset);
    const std::uint64_t end = std::min(mapping.end() * kSector, last);
    if (begin > done) visit({done, begin - done, Run::Kind::Hole, 0, 0});
    if (mapping.zero())
      visit({begin, end - begin, Run::Kind::Zero, 0, 0});
    else
      visit({begin, end - begin, Run::Kind::Data, mapping.layer(),
             mapping.place() * kSector + (begin - mapping.offset() * kSector)});
    done = end;
  };
  const std::uint64_t from = offset / kSector, to = (last + kSector - 1) / kSector;
  std::uint64_t decided = from;
  if (top_) {
    const auto number = static_cast<std::uint8_t>(sealed_.size());
    top_->extents().visit(from, to, [&](const Mapping& above) {
      if (above.offset() > decided) visit_sealed(decided, above.offset(), tell);
      tell(above.part(from, to).in_layer(number));
      decided = std::min(above.end(), to);
    });
  }
  if (decided < to) visit_sealed(decided, to, tell);
  if (done < last) visit({done, last - done, Run::Kind::Hole, 0, 0});
}

void Stack::read_layer(std::uint8_t layer, std::uint64_t place, char* buffer, std::size_t size) const {
  if (layer == sealed_.size()) return top_->read(place, buffer, size);
  sealed_[sealed_.size() - 1 - layer].read(place, buffer, size);
}

void Stack::read(const Run& run, char* buffer) const {
  if (run.kind == Run::Kind::Data)
    read_layer(run.layer, run.place, buffer, static_cast<std::size_t>(run.size));
  else
    std::memset(buffer, 0, static_cast<std::size_t>(run.size));
}

void Stack::read(const Mapping& mapping, char* buffer) const {
  const std::size_t size = mapping.length() * kSector;
  if (mapping.zero())
    std::memset(buffer, 0, size);
  else
    read_layer(mapping.layer(), mapping.place() * kSector, buffer, size);
}

void Stack::read(std::uint64_t offset, char* buffer, std::size_t size) const {
  visit(offset, size, [&](const Run& run) { read(run, buffer + (run.offset - offset)); });
}

std::vector<Mapping> Stack::mappings() const {
  if (!top_) return merged_;
  std::vector<Mapping> above = top_->extents().mappings();
  for (Mapping& mapping : above) mapping = mapping.in_layer(static_cast<std::uint8_t>(sealed_.size()));
  return lay_over(above, merged_);
}

}  // namespace dsec::layers::overlaybd
