#include "layers/overlaybd/raw_image.h"

#include "tests/unit/layers/overlaybd/layers.h"

using namespace dsec;
using namespace dsec::testing;

namespace {

constexpr std::size_t kBlock = 4096;

struct Maker {
  Layers layers;

  obd::Written sealed(const std::string& image, const std::string& out, const std::vector<std::string>& below = {},
                      std::optional<std::uint64_t> size = {}, const obd::NewLayer& layer = {}) {
    const UniqueFd file = open_file(layers.path(out), O_RDWR | O_CREAT | O_TRUNC);
    return obd::create_sealed({layers.path(image), layers.paths(below), size, layer}, file.get(), layers.silent());
  }
  std::string device(const std::vector<std::string>& files) { return device_of(layers.stack(files)); }
};

}  // namespace

TEST_CASE("a layer of an image has what is not zero", "[layers][overlaybd]") {
  Maker maker;
  const std::string image = std::string(kBlock, 'a') + std::string(5 * kBlock, '\0') + std::string(2 * kBlock, 'b') +
                            std::string(3 << 20, '\0') + "end";
  maker.layers.write("image", image);
  const obd::Written written = maker.sealed("image", "base");
  CHECK(written.mappings == 3);
  CHECK(written.size == image.size() + 509);
  CHECK(written.bytes == std::filesystem::file_size(maker.layers.path("base")));
  CHECK(maker.device({"base"}) == image + std::string(509, '\0'));
  CHECK(maker.layers.stack({"base"}).mappings()[1] == obd::Mapping(48, 16, 16));
  maker.sealed("image", "again");
  CHECK(maker.layers.bytes("again") == maker.layers.bytes("base"));
}

TEST_CASE("holes of an image are not read", "[layers][overlaybd]") {
  Maker maker;
  maker.layers.write("image", "");
  const std::uint64_t size = 8ull << 40;
  REQUIRE(::truncate(maker.layers.path("image").c_str(), static_cast<off_t>(size)) == 0);
  {
    const UniqueFd file = open_file(maker.layers.path("image"), O_WRONLY);
    REQUIRE(::pwrite(file.get(), "x", 1, 5ll << 40) == 1);
  }
  maker.sealed("image", "base");
  const obd::Stack stack = maker.layers.stack({"base"});
  CHECK(stack.size() == size);
  REQUIRE(stack.mappings().size() == 1);
  char byte = 0;
  stack.read(5ull << 40, &byte, 1);
  CHECK(byte == 'x');
}

TEST_CASE("a layer of an image on top of others has what differs", "[layers][overlaybd]") {
  Maker maker;
  std::string image(64 * kBlock, 'a');
  maker.layers.write("first", image);
  maker.sealed("first", "base", {}, {}, {.uuid = "3F2C9D1E-0000-4000-8000-000000000001"});
  image.replace(3 * kBlock + 5, 1, "b");
  image.replace(10 * kBlock, 4 * kBlock, std::string(4 * kBlock, '\0'));
  maker.layers.write("second", image);
  const obd::Written written = maker.sealed("second", "change", {"base"});
  CHECK(written.parent == "3F2C9D1E-0000-4000-8000-000000000001");
  CHECK(maker.layers.stack({"change"}).mappings() == std::vector<obd::Mapping>{{24, 8, 8}, {80, 32, 16, true}});
  CHECK(maker.device({"base", "change"}) == image);
  // A shorter image, and a device that is larger than either.
  maker.layers.write("third", image.substr(0, 20 * kBlock));
  maker.sealed("third", "short", {"base", "change"}, 100 * kBlock);
  CHECK(maker.device({"base", "change", "short"}) == image.substr(0, 20 * kBlock) + std::string(80 * kBlock, '\0'));
}

TEST_CASE("random images in a chain are shown by it", "[layers][overlaybd]") {
  std::mt19937 random(11);
  for (int round = 0; round < 8; ++round) {
    Maker maker;
    std::string image(3 << 20, '\0');
    std::vector<std::string> chain;
    for (int i = 0; i < 5; ++i) {
      for (int change = 0; change < 20; ++change) {
        const std::size_t at = random() % image.size(),
                          size = random() % std::min<std::size_t>(image.size() - at, 60000);
        image.replace(at, size, random() % 3 == 0 ? std::string(size, '\0') : noise(random, size));
      }
      const std::string name = std::to_string(i);
      maker.layers.write("image", image);
      obd::NewLayer layer;
      if (i % 2 == 1) layer.packing.compression = obd::Compression::Lz4;
      maker.sealed("image", name, chain, {}, layer);
      chain.push_back(name);
      REQUIRE(maker.device(chain) == image);
    }
    maker.layers.commit(chain, "flat");
    REQUIRE(maker.device({"flat"}) == image);
  }
}

TEST_CASE("a writable layer may begin with an image", "[layers][overlaybd]") {
  Maker maker;
  std::string image(40 * kBlock, 'a');
  maker.layers.write("first", image);
  maker.sealed("first", "base");
  image.replace(kBlock, kBlock, std::string(kBlock, '\0'));
  maker.layers.write("second", image);
  const auto create = [&](const obd::NewDevice& device) {
    return obd::create_writable(device, maker.layers.path("top.data"), maker.layers.path("top.index"),
                                maker.layers.silent());
  };
  const obd::Written written = create({maker.layers.path("second"), maker.layers.paths({"base"}), {}, {}});
  CHECK(written.mappings == 1);
  CHECK(written.uuid.size() == 36);
  CHECK(maker.device({"base", "top.data", "top.index"}) == image);
  CHECK_THROWS_WITH(create({{}, {}, 4096, {}}), Catch::Contains("top.data' exists"));
}

TEST_CASE("a device that cannot be is not made", "[layers][overlaybd]") {
  Maker maker;
  maker.layers.write("image", std::string(8192, 'x'));
  maker.layers.writable("top", 8192);
  CHECK_THROWS_WITH(maker.sealed("image", "out", {}, 4096), Catch::Contains("the image has 8192 bytes"));
  CHECK_THROWS_WITH(maker.sealed("image", "out", {}, 8193), Catch::Contains("no whole number of sectors"));
  CHECK_THROWS_WITH(maker.sealed("image", "out", {}, 1ull << 62), Catch::Contains("larger than one can be"));
  CHECK_THROWS_WITH(maker.sealed("image", "out", {"top.data", "top.index"}), Catch::Contains("is a writable layer"));
  const auto create = [&](const obd::NewDevice& device) {
    obd::create_writable(device, maker.layers.path("new.data"), maker.layers.path("new.index"), maker.layers.silent());
  };
  CHECK_THROWS_WITH(create({}), Catch::Contains("nothing tells the size"));
  CHECK_FALSE(std::filesystem::exists(maker.layers.path("new.data")));
}
