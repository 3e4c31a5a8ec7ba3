#include "layers/overlaybd/writable_layer.h"

#include "tests/unit/layers/overlaybd/layers.h"

using namespace dsec;
using namespace dsec::testing;
using Access = obd::WritableLayer::Access;

namespace {

constexpr std::uint64_t kSize = 1 << 20;

std::string mapping(const obd::Mapping& mapping) {
  std::string bytes;
  mapping.append_to(bytes);
  return bytes;
}

/// A layer of two writes: sectors 0-1 'a', sectors 8-9 'b'.
void two_writes(Layers& layers) {
  layers.writable("top", kSize, "3F2C9D1E-0000-4000-8000-000000000001");
  auto layer = layers.open("top");
  layer.write(0, sectors(2, 'a'));
  layer.write(8 * obd::kSector, sectors(2, 'b'));
}

std::string first_sectors(Layers& layers) {
  return device_of(layers.stack({"top.data", "top.index"})).substr(0, 10 * obd::kSector);
}

const std::string kBoth = sectors(2, 'a') + sectors(6, '\0') + sectors(2, 'b');

}  // namespace

TEST_CASE("the files of a writable layer are those of the format", "[layers][overlaybd]") {
  Layers layers;
  layers.writable("top", kSize, "3F2C9D1E-0000-4000-8000-000000000001", "3F2C9D1E-0000-4000-8000-000000000002");
  {
    auto layer = layers.open("top");
    layer.write(512, sectors(3, 'a'));
    layer.discard(0, 2048);
    layer.write(1024, sectors(1, 'b'));
    layer.flush();
  }
  const std::string data = layers.bytes("top.data"), index = layers.bytes("top.index");
  REQUIRE(data.size() == 4096 + 4 * 512);
  CHECK(data.substr(4096) == sectors(3, 'a') + sectors(1, 'b'));
  CHECK(index.substr(4096) == mapping({1, 3, 8}) + mapping({0, 4, 11, true}) + mapping({2, 1, 11}));
  // Fields of the headers, told by their bytes.
  CHECK(data.substr(0, 32) == std::string("LSMT\0\1\2\0\x65\x7E\x63\xD2\x94\x44\x08\x4C\xA2\xD2\xC8\xEC\x4F\xCF\xAE\x8A"
                                          "\x86\x01\0\0\3\0\0\0",
                                          32));
  CHECK(data.substr(32, 24) == std::string("\0\0\0\0\0\0\0\0"
                                           "\0\0\0\0\0\0\0\0"
                                           "\0\0\x10\0\0\0\0\0",
                                           24));
  CHECK(data.substr(56, 37) == std::string("3F2C9D1E-0000-4000-8000-000000000001\0", 37));
  CHECK(data.substr(93, 37) == std::string("3F2C9D1E-0000-4000-8000-000000000002\0", 37));
  CHECK(data.substr(130, 4) == std::string("\0\0\1\1", 4));
  CHECK(index.substr(28, 12) == std::string("\1\0\0\0"
                                            "\0\x10\0\0\0\0\0\0",
                                            12));
}

TEST_CASE("what a crash leaves at the end of an index is passed over, and cut off by who writes on",
          "[layers][overlaybd]") {
  Layers layers;
  two_writes(layers);
  const std::string index = layers.bytes("top.index");
  const std::string torn = GENERATE(std::string("\1\2\3\4\5\6\7"),                      // a part of a mapping
                                    mapping({20, 4, 12}),                               // bytes that are not there
                                    mapping({20, 4, 12}) + mapping({30, 4, 99, true}),  // and what came after them
                                    std::string(4096 - 32, '\0'));                      // room that was never written
  layers.write("top.index", index + torn);
  {
    const auto layer = layers.open("top", Access::Read);
    CHECK(layer.passed_over() == torn.size());
  }
  CHECK(first_sectors(layers) == kBoth);
  CHECK(layers.bytes("top.index") == index + torn);
  layers.open("top").write(20 * obd::kSector, sectors(1, 'c'));
  CHECK(layers.bytes("top.index") == index + mapping({20, 1, 12}));
  CHECK(first_sectors(layers) == kBoth);
}

TEST_CASE("bytes that no mapping tells of are passed over", "[layers][overlaybd]") {
  Layers layers;
  two_writes(layers);
  layers.write("top.data", layers.bytes("top.data") + "not a whole sector");
  CHECK(first_sectors(layers) == kBoth);
  layers.open("top").write(0, sectors(1, 'd'));
  CHECK(first_sectors(layers) == sectors(1, 'd') + kBoth.substr(512));
}

TEST_CASE("a mapping that points to nothing before others that do not is no crash", "[layers][overlaybd]") {
  Layers layers;
  two_writes(layers);
  layers.write("top.index", layers.bytes("top.index") + mapping({20, 4, 12}) + mapping({0, 1, 8}));
  CHECK_THROWS_WITH(layers.open("top"),
                    Catch::Contains("is damaged: mapping 2 points to what the data file does not have"));
}

TEST_CASE("mappings that fill up may stand anywhere in an index", "[layers][overlaybd]") {
  Layers layers;
  two_writes(layers);
  const std::string index = layers.bytes("top.index"), filler = mapping(obd::Mapping::filler());
  layers.write("top.index", index.substr(0, 4112) + filler + filler + index.substr(4112) + filler);
  CHECK(first_sectors(layers) == kBoth);
}

TEST_CASE("one process at a time writes to a layer", "[layers][overlaybd]") {
  Layers layers;
  two_writes(layers);
  const auto writer = layers.open("top");
  CHECK_THROWS_WITH(layers.open("top"), Catch::Contains("is being written to by another process"));
  CHECK(first_sectors(layers) == kBoth);
}

TEST_CASE("only whole sectors of the device are written", "[layers][overlaybd]") {
  Layers layers;
  two_writes(layers);
  auto layer = layers.open("top");
  CHECK_THROWS_WITH(layer.write(100, sectors(1, 'x')), Catch::Contains("only whole sectors"));
  CHECK_THROWS_WITH(layer.write(0, "x"), Catch::Contains("only whole sectors"));
  CHECK_THROWS_WITH(layer.write(kSize, sectors(1, 'x')), Catch::Contains("beyond the end"));
  CHECK_THROWS_WITH(layer.discard(kSize - 512, 1024), Catch::Contains("beyond the end"));
  CHECK_THROWS_WITH(layer.discard(~511ull, 1024), Catch::Contains("beyond the end"));
  CHECK(first_sectors(layers) == kBoth);
}

TEST_CASE("large writes and discards come under several mappings", "[layers][overlaybd]") {
  Layers layers;
  const std::uint64_t size = 20 << 20;
  layers.writable("top", size);
  std::mt19937 random(1);
  const std::string bytes = noise(random, 9 << 20);
  {
    auto layer = layers.open("top");
    layer.write(512, bytes);
    CHECK(layer.extents().size() == 3);  // of 4 MiB at most
    layer.discard(10 << 20, 10 << 20);
  }
  const std::string device = device_of(layers.stack({"top.data", "top.index"}));
  CHECK(device == sectors(1, '\0') + bytes + std::string(size - 512 - bytes.size(), '\0'));
}

TEST_CASE("files that do not belong together are refused", "[layers][overlaybd]") {
  Layers layers;
  two_writes(layers);
  layers.writable("other", kSize, "3F2C9D1E-0000-4000-8000-000000000009");
  layers.commit({"top.data", "top.index"}, "sealed");
  const auto open = [&](const std::string& data, const std::string& index) {
    obd::WritableLayer(layers.path(data), layers.path(index), Access::Read);
  };
  CHECK_THROWS_WITH(open("top.data", "other.index"), Catch::Contains("is the index of another layer"));
  CHECK_THROWS_WITH(open("top.index", "top.data"), Catch::Contains("is no data file of a writable layer"));
  CHECK_THROWS_WITH(open("sealed", "top.index"), Catch::Contains("is no data file of a writable layer"));
  CHECK_THROWS_WITH(open("top.data", "sealed"), Catch::Contains("is no index file of a writable layer"));
}
