#include "layers/overlaybd/create.h"

#include <unistd.h>

#include "core/base/files.h"
#include "layers/overlaybd/new_file.h"
#include "layers/overlaybd/raw_image.h"
#include "layers/overlaybd/uuid.h"

namespace dsec::layers::overlaybd {
namespace {

/// What a request comes to.
struct Plan {
  std::optional<RawImage> raw;
  std::optional<Stack> below;
  LayerHeader facts;

  const Stack* below_or_null() const { return below ? &*below : nullptr; }
};

Plan plan(const NewDevice& device) {
  Plan plan;
  if (device.raw) plan.raw.emplace(*device.raw);
  if (!device.below.empty()) {
    plan.below.emplace(Stack::open(device.below));
    if (plan.below->top())
      throw usage_error(plan.below->top()->name() + " is a writable layer, and what is below must not change")
          .hint("make a sealed layer of it with dsec obd commit");
  }
  const std::uint64_t least = plan.raw ? plan.raw->size() : 0;
  plan.facts.size = device.size.value_or(plan.raw ? least : plan.below ? plan.below->size() : 0);
  if (plan.facts.size == 0) throw usage_error("nothing tells the size of the device").hint("give one with --size");
  if (plan.facts.size % kSector != 0)
    throw usage_error("a device of " + std::to_string(plan.facts.size) + " bytes has no whole number of sectors of " +
                      std::to_string(kSector) + " bytes");
  if (plan.facts.size / kSector > Mapping::kMaxOffset)
    throw usage_error("a device of " + std::to_string(plan.facts.size) + " bytes is larger than one can be");
  if (plan.facts.size < least)
    throw usage_error("the image has " + std::to_string(least) + " bytes, and the device shall have " +
                      std::to_string(plan.facts.size));
  plan.facts.uuid = device.layer.uuid.value_or("");
  plan.facts.parent = device.layer.parent.value_or(plan.below ? plan.below->highest().uuid : "");
  plan.facts.message = device.layer.message;
  return plan;
}

Written told(const LayerHeader& facts, std::uint64_t bytes, std::size_t mappings) {
  Written written{.bytes = bytes, .size = facts.size, .mappings = mappings};
  written.uuid = facts.uuid;
  written.parent = facts.parent;
  return written;
}

class ToWritable : public DeviceContents {
 public:
  explicit ToWritable(WritableLayer& layer) : layer_(layer) {}
  void data(std::uint64_t sector, std::string_view bytes) override { layer_.write(sector * kSector, bytes); }
  void zeros(std::uint64_t sector, std::uint64_t count) override { layer_.discard(sector * kSector, count * kSector); }

 private:
  WritableLayer& layer_;
};

TempFile beside(const std::filesystem::path& path) {
  return TempFile(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."), 0644);
}

}  // namespace

Written create_sealed(const NewDevice& device, int fd, Progress& progress) {
  if (!device.raw)
    throw usage_error("a sealed layer is made of an image")
        .hint("give one with --from, or two names, DATA and INDEX, for a writable layer");
  const Plan plan = overlaybd::plan(device);
  const auto output = make_layer_output(fd, device.layer.packing);
  LayerWriter writer(*output, plan.facts);
  write_raw(*plan.raw, plan.below_or_null(), plan.facts.size, writer, progress);
  const std::uint64_t bytes = writer.finish();
  return told(plan.facts, bytes, writer.mappings());
}

Written create_writable(const NewDevice& device, const std::filesystem::path& data, const std::filesystem::path& index,
                        Progress& progress) {
  if (data == index) throw usage_error("data and index of a layer are two files");
  refuse_existing(data);
  refuse_existing(index);
  Plan plan = overlaybd::plan(device);
  if (!device.layer.uuid) plan.facts.uuid = random_uuid();
  TempFile data_file = beside(data), index_file = beside(index);
  WritableLayer::create(data_file.fd(), index_file.fd(), plan.facts);
  std::uint64_t bytes = 0;
  std::size_t mappings = 0;
  {
    WritableLayer layer(data_file.path(), index_file.path(), WritableLayer::Access::Write);
    ToWritable contents(layer);
    if (plan.raw) write_raw(*plan.raw, plan.below_or_null(), plan.facts.size, contents, progress);
    layer.flush();
    bytes = layer.stored();
    mappings = layer.extents().size();
  }
  // The index first: alone it is refused by name, where data alone would pass for a layer that lost its index.
  publish_new(index_file, index);
  try {
    publish_new(data_file, data);
  } catch (const Error&) {
    ::unlink(index.c_str());
    throw;
  }
  return told(plan.facts, bytes, mappings);
}

}  // namespace dsec::layers::overlaybd
