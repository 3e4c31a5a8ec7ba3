#include "layers/overlaybd/layer_file.h"

#include <fcntl.h>

#include "core/base/files.h"
#include "layers/overlaybd/layer_input.h"
#include "layers/overlaybd/mapping.h"
#include "layers/overlaybd/tar_wrap.h"

namespace dsec::layers::overlaybd {

LayerFile open_layer_file(UniqueFd file, std::string name) {
  LayerFile layer{.bytes = file_bytes(std::move(file), std::move(name))};
  layer.stored = layer.bytes->size();
  if (const auto part = find_in_tar(*layer.bytes)) {
    layer.bytes = part_of(std::move(layer.bytes), part->offset, part->size);
    layer.in_tar = true;
  }
  if (is_zfile(*layer.bytes)) {
    ZfileFacts facts;
    layer.bytes = open_zfile(std::move(layer.bytes), facts);
    layer.zfile = facts;
  }
  return layer;
}

LayerFile open_layer_file(const std::filesystem::path& path) {
  return open_layer_file(open_input(path), quote(path.native()));
}

LayerHeader read_layer_header(const RandomBytes& bytes) {
  std::optional<LayerHeader> header;
  if (bytes.size() >= LayerHeader::kSize) header = LayerHeader::parse(bytes.read(0, LayerHeader::kSize));
  if (!header || !header->is_header) throw failure(bytes.name() + " is no OverlayBD layer");
  return *header;
}

std::optional<LayerHeader> read_layer_trailer(const RandomBytes& bytes) {
  if (bytes.size() < 2 * LayerHeader::kSize) return std::nullopt;
  auto trailer = LayerHeader::parse(bytes.read(bytes.size() - LayerHeader::kSize, LayerHeader::kSize));
  if (!trailer || trailer->is_header || !trailer->is_data || !trailer->is_sealed) return std::nullopt;
  return trailer;
}

void check_device_size(const RandomBytes& bytes, std::uint64_t size) {
  if (size % kSector != 0)
    throw bytes.damaged("its device has " + std::to_string(size) + " bytes, which are no whole sectors");
  if (size / kSector > Mapping::kMaxOffset)
    throw bytes.damaged("its device has " + std::to_string(size) + " bytes, more than a device can have");
}

}  // namespace dsec::layers::overlaybd
