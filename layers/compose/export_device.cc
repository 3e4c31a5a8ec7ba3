#include "layers/compose/export_device.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/little_endian.h"
#include "layers/erofs_read/superblock.h"
#include "layers/overlaybd/checksum.h"
#include "layers/overlaybd/layer_writer.h"
#include "layers/overlaybd/random_bytes.h"
#include "layers/overlaybd/uuid.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kBlock = 4096;       // of EROFS, and what is left out when it is zero
constexpr std::uint64_t kPiece = 1 << 20;  // bytes read at a time
constexpr std::size_t kSuperblock = 1024;  // where it lies
constexpr std::size_t kSlot = 128;         // bytes of one of the device table

/// The first block of the metadata, changed to tell that the contents begin at block `address` of the same device.
std::string flat_superblock(MetaReader& meta, const ErofsSuperblock& super, std::uint64_t address) {
  std::string block = meta.read(0, kBlock);
  const std::size_t slot = Fields(block).u16(kSuperblock + 88) * kSlot;
  if (slot + kSlot > kBlock) throw meta.damaged("its device table does not follow the superblock");
  put_u32(block, slot + 68, static_cast<std::uint32_t>(address));
  if ((super.compatible & 1) != 0) {
    put_u32(block, kSuperblock + 4, 0);
    put_u32(block, kSuperblock + 4, overlaybd::plain_crc32c(~0u, std::string_view(block).substr(kSuperblock)));
  }
  return block;
}

class DeviceExport {
 public:
  DeviceExport(overlaybd::DeviceContents& to, std::string step, std::uint64_t total, Progress& progress)
      : to_(to), step_(std::move(step)), total_(total), progress_(progress) {}

  /// A blob from byte `skip` on, its beginning at block `block` of the device, without its zeros.
  void copy(const overlaybd::RandomBytes& from, std::uint64_t skip, std::uint64_t block) {
    std::string buffer;
    for (std::uint64_t at = skip; at < from.size(); at += buffer.size()) {
      buffer.resize(static_cast<std::size_t>(std::min(kPiece, from.size() - at)));
      from.read(at, buffer.data(), buffer.size());
      buffer.resize((buffer.size() + kBlock - 1) / kBlock * kBlock);
      put(block + at / kBlock, buffer);
      progress_.advance(step_, done_ += buffer.size(), total_);
    }
  }
  void put(std::uint64_t block, std::string_view bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      std::size_t end = at;
      while (end < bytes.size() && !is_zero(bytes.substr(end, kBlock))) end += kBlock;
      if (end > at) to_.data((block + at / kBlock) * (kBlock / overlaybd::kSector), bytes.substr(at, end - at));
      at = std::max(end, at + kBlock);
    }
  }

 private:
  static bool is_zero(std::string_view bytes) {
    return bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
  }

  overlaybd::DeviceContents& to_;
  std::string step_;
  std::uint64_t done_ = 0, total_;
  Progress& progress_;
};

}  // namespace

overlaybd::Written export_device(engine::LayerStore& store, const engine::StoredLayer& layer, int fd,
                                 const overlaybd::NewLayer& wanted, Progress& progress) {
  const std::string name = layer.manifest.name.str();
  return attempt("cannot export layer " + quote(name), [&] {
    if (layer.manifest.images.size() != 1)
      throw failure("it has " + std::to_string(layer.manifest.images.size()) + " images, and a device holds one")
          .hint("import it anew with a larger --collapse-limit");
    const LayerImage& image = layer.manifest.images.front();
    const auto open = [&](BlobRole role) {
      const Blob& blob = image.blob(role);
      // The file may go on with a hole.
      return overlaybd::part_of(overlaybd::file_bytes(open_file(store.blob_path(blob.digest), O_RDONLY), "its image"),
                                0, blob.size);
    };
    const auto meta = open(BlobRole::Meta);
    const auto data = image.find(BlobRole::Data) ? open(BlobRole::Data) : nullptr;
    MetaReader reader(open_file(store.blob_path(image.blob(BlobRole::Meta).digest), O_RDONLY), "of the layer");
    const ErofsSuperblock super = read_superblock(reader);
    if (super.block_size() != kBlock || meta->size() % kBlock != 0)
      throw failure("its image is not made of blocks of 4096 bytes");
    const std::uint64_t address = super.device_address != 0 ? super.device_address : meta->size() / kBlock;
    if (address * kBlock < meta->size() || address > 0xffffffffu)
      throw failure("metadata and contents of its image overlap on one device");

    overlaybd::LayerHeader facts;
    facts.size = data ? address * kBlock + (data->size() + kBlock - 1) / kBlock * kBlock : meta->size();
    facts.uuid = wanted.uuid.value_or(overlaybd::parse_uuid(image.uuid));
    facts.parent = wanted.parent.value_or("");
    facts.message = wanted.message;
    const auto output = overlaybd::make_layer_output(fd, wanted.packing);
    overlaybd::LayerWriter writer(*output, facts);
    const std::string step = "export " + name;
    progress.begin(step);
    DeviceExport to(writer, step, facts.size, progress);
    if (data && super.device_blocks) {
      to.put(0, flat_superblock(reader, super, address));
      to.copy(*meta, kBlock, 0);
      to.copy(*data, 0, address);
    } else {
      to.copy(*meta, 0, 0);
    }
    overlaybd::Written written{.bytes = writer.finish(), .size = facts.size, .mappings = writer.mappings()};
    written.uuid = facts.uuid;
    progress.end(step, "");
    return written;
  });
}

}  // namespace dsec::layers
