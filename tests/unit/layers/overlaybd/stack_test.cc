#include "layers/overlaybd/stack.h"

#include "layers/overlaybd/device_image.h"
#include "tests/unit/layers/overlaybd/layers.h"

using namespace dsec;
using namespace dsec::testing;

namespace {

constexpr std::uint64_t kSectors = 4096;

/// A device under random writes, its layers beside the plain bytes that it must show.
class World {
 public:
  explicit World(unsigned seed) : random_(seed), device_(kSectors * obd::kSector, '\0') {}

  void write_some(obd::WritableLayer& layer, int count) {
    for (int i = 0; i < count; ++i) {
      const std::uint64_t sector = random_() % kSectors;
      const std::uint64_t length = 1 + random_() % std::min<std::uint64_t>(kSectors - sector, random_() % 8 ? 20 : 900);
      const std::size_t at = sector * obd::kSector, size = length * obd::kSector;
      if (random_() % 4 == 0) {
        layer.discard(at, size);
        device_.replace(at, size, std::string(size, '\0'));
      } else {
        const std::string bytes = noise(random_, size);
        layer.write(at, bytes);
        device_.replace(at, size, bytes);
      }
    }
  }

  obd::NewLayer any_packing() {
    obd::NewLayer layer;
    if (const unsigned kind = random_() % 3; kind > 0)
      layer.packing.compression = kind == 1 ? obd::Compression::Lz4 : obd::Compression::Zstd;
    layer.packing.block_size = 4096u << random_() % 4;
    layer.packing.tar = random_() % 2 == 0;
    return layer;
  }

  /// Adds a layer on top of `files_`, a sealed one.
  void add_sealed(const std::string& name, int writes) {
    layers_.writable(name, kSectors * obd::kSector);
    {
      auto layer = layers_.open(name);
      write_some(layer, writes);
    }
    layers_.commit({name + ".data", name + ".index"}, name, any_packing());
    files_.push_back(name);
  }

  void check(const obd::Stack& stack) {
    REQUIRE(device_of(stack) == device_);
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t offset = random_() % device_.size();
      std::string bytes(random_() % std::min<std::uint64_t>(device_.size() - offset, 40000), '?');
      stack.read(offset, bytes.data(), bytes.size());
      REQUIRE(bytes == device_.substr(offset, bytes.size()));
    }
  }

  std::mt19937 random_;
  Layers layers_;
  std::string device_;
  std::vector<std::string> files_;
};

}  // namespace

TEST_CASE("a stack of layers shows what was written last", "[layers][overlaybd]") {
  for (unsigned seed = 0; seed < 12; ++seed) {
    World world(seed);
    const int count = static_cast<int>(1 + world.random_() % 6);
    for (int i = 0; i < count; ++i)
      world.add_sealed("layer-" + std::to_string(i), static_cast<int>(world.random_() % 30));
    world.check(world.layers_.stack(world.files_));

    world.layers_.writable("top", kSectors * obd::kSector);
    std::vector<std::string> all = world.files_;
    all.insert(all.end(), {"top.data", "top.index"});
    obd::Stack stack = obd::Stack::open(world.layers_.paths(all), obd::WritableLayer::Access::Write);
    for (int round = 0; round < 4; ++round) {
      world.write_some(*stack.top(), 10);
      world.check(stack);
    }
    stack.top()->flush();
    world.check(world.layers_.stack(all));

    // Made one, they show the same.
    world.layers_.commit(all, "flat", world.any_packing());
    world.check(world.layers_.stack({"flat"}));
  }
}

TEST_CASE("a device has 255 sealed layers and one on top, and no more", "[layers][overlaybd]") {
  World world(3);
  for (int i = 0; i < 255; ++i) world.add_sealed("layer-" + std::to_string(i), 3);
  world.layers_.writable("top", kSectors * obd::kSector);
  std::vector<std::string> all = world.files_;
  all.insert(all.end(), {"top.data", "top.index"});
  {
    obd::Stack stack = obd::Stack::open(world.layers_.paths(all), obd::WritableLayer::Access::Write);
    world.write_some(*stack.top(), 20);
    world.check(stack);
  }
  world.layers_.commit(all, "flat");
  world.check(world.layers_.stack({"flat"}));
  world.files_.push_back("layer-0");
  CHECK_THROWS_WITH(world.layers_.stack(world.files_), "256 sealed layers are given, and a device has at most 255");
}

TEST_CASE("the highest layer that tells a size has it", "[layers][overlaybd]") {
  Layers layers;
  layers.writable("a", 1 << 20);
  layers.writable("b", 0);
  layers.writable("c", 2 << 20);
  for (const std::string name : {"a", "b", "c"}) layers.commit({name + ".data", name + ".index"}, name);
  CHECK(layers.stack({"a", "b"}).size() == 1 << 20);
  CHECK(layers.stack({"a", "b", "c"}).size() == 2 << 20);
  CHECK(layers.stack({"c", "b", "a"}).size() == 1 << 20);
}

TEST_CASE("an image is a sparse file, and all bytes elsewhere", "[layers][overlaybd]") {
  World world(5);
  world.add_sealed("base", 12);
  const obd::Stack stack = world.layers_.stack(world.files_);
  {
    const UniqueFd file = open_file(world.layers_.path("image"), O_RDWR | O_CREAT | O_TRUNC);
    obd::write_image(stack, file.get(), world.layers_.silent());
  }
  CHECK(world.layers_.bytes("image") == world.device_);
  struct stat facts {};
  REQUIRE(::stat(world.layers_.path("image").c_str(), &facts) == 0);
  CHECK(static_cast<std::uint64_t>(facts.st_blocks) * 512 < world.device_.size());

  // A file that is appended to takes bytes at its end only, and what a longer one has must not show through.
  world.layers_.write("image", "before");
  {
    const UniqueFd file = open_file(world.layers_.path("image"), O_WRONLY | O_APPEND);
    obd::write_image(stack, file.get(), world.layers_.silent());
  }
  CHECK(world.layers_.bytes("image") == "before" + world.device_);
  world.layers_.write("image", std::string(world.device_.size(), 'x'));
  {
    const UniqueFd file = open_file(world.layers_.path("image"), O_WRONLY);
    obd::write_image(stack, file.get(), world.layers_.silent());
  }
  CHECK(world.layers_.bytes("image") == world.device_);
}

TEST_CASE("nothing may be on top of a writable layer", "[layers][overlaybd]") {
  Layers layers;
  layers.writable("a", 1 << 20);
  layers.commit({"a.data", "a.index"}, "sealed");
  CHECK_THROWS_WITH(layers.stack({"a.data", "a.index", "sealed"}),
                    Catch::Contains("only the highest layer may be a writable one"));
  CHECK_THROWS_WITH(layers.stack({"a.data"}), Catch::Contains("is a writable layer that is not sealed"));
  CHECK_THROWS_WITH(layers.stack({"a.index"}), Catch::Contains("is the index of a writable layer"));
  CHECK_THROWS_WITH(layers.stack({}), "no layer is given");
}
