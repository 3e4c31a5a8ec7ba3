#include "layers/overlaybd/sealed_layer.h"

#include <functional>

#include "core/base/little_endian.h"
#include "layers/overlaybd/check.h"
#include "layers/overlaybd/layer_writer.h"
#include "tests/unit/layers/overlaybd/layers.h"

using namespace dsec;
using namespace dsec::testing;

namespace {

constexpr std::uint64_t kSize = 1 << 20;

/// A sealed layer of sectors 0-1 'a', zeros at 4-7, 8-9 'b'; its mappings begin at byte 6144.
std::string three_runs(Layers& layers) {
  layers.writable("top", kSize);
  {
    auto layer = layers.open("top");
    layer.write(0, sectors(2, 'a'));
    layer.discard(4 * obd::kSector, 4 * obd::kSector);
    layer.write(8 * obd::kSector, sectors(2, 'b'));
  }
  layers.commit({"top.data", "top.index"}, "sealed");
  return layers.bytes("sealed");
}

void open(Layers& layers, std::string_view bytes) {
  layers.write("changed", bytes);
  obd::SealedLayer(obd::open_layer_file(layers.path("changed")));
}

std::string mapping(const obd::Mapping& mapping) {
  std::string bytes;
  mapping.append_to(bytes);
  return bytes;
}

}  // namespace

TEST_CASE("a sealed layer is that of the format", "[layers][overlaybd]") {
  Layers layers;
  const std::string bytes = three_runs(layers);
  REQUIRE(bytes.size() == 4096 + 4 * 512 + 4096 + 4096);
  CHECK(bytes.substr(28, 4) == std::string("\7\0\0\0", 4));
  CHECK(bytes.substr(32, 16) == std::string(16, '\0'));
  CHECK(bytes.substr(4096, 4 * 512) == sectors(2, 'a') + sectors(2, 'b'));
  std::string table = mapping({0, 2, 8}) + mapping({4, 4, 10, true}) + mapping({8, 2, 10});
  for (int i = 3; i < 256; ++i) table += mapping(obd::Mapping::filler());
  CHECK(bytes.substr(6144, 4096) == table);
  const Fields trailer(std::string_view(bytes).substr(bytes.size() - 4096));
  CHECK(trailer.u32(28) == 6);
  CHECK(trailer.u64(32) == 6144);
  CHECK(trailer.u64(40) == 256);
  CHECK(trailer.u64(48) == kSize);
}

TEST_CASE("a damaged layer is refused, saying what is wrong", "[layers][overlaybd]") {
  struct Case {
    const char* words;
    std::function<void(std::string&)> change;
  };
  const std::size_t trailer = 4096 + 4 * 512 + 4096, table = 6144;
  const Case test = GENERATE_COPY(
      Case{"is no OverlayBD layer", [](std::string& bytes) { bytes[3] = 'X'; }},
      Case{"is no OverlayBD layer", [](std::string& bytes) { bytes[20] ^= 1; }},
      Case{"is no OverlayBD layer", [](std::string& bytes) { bytes.clear(); }},
      Case{"is no OverlayBD layer", [](std::string& bytes) { bytes.resize(4095); }},
      Case{"it has no trailer", [](std::string& bytes) { bytes.resize(4096); }},
      Case{"it has no trailer", [](std::string& bytes) { bytes.pop_back(); }},
      Case{"it has no trailer", [=](std::string& bytes) { bytes[trailer] = 'X'; }},
      Case{"it has no trailer", [=](std::string& bytes) { bytes[trailer + 28] = 7; }},
      Case{"it has no trailer", [=](std::string& bytes) { bytes[trailer + 28] = 2; }},
      Case{"it has no trailer", [=](std::string& bytes) { bytes[trailer + 28] = 4; }},
      Case{"is the index of a writable layer", [](std::string& bytes) { bytes[28] = 5; }},
      Case{"do not lie between header and trailer", [=](std::string& bytes) { put_u64(bytes, trailer + 32, 4095); }},
      Case{"do not lie between header and trailer", [=](std::string& bytes) { put_u64(bytes, trailer + 32, ~0ull); }},
      Case{"do not lie between header and trailer", [=](std::string& bytes) { put_u64(bytes, trailer + 40, 257); }},
      Case{"it tells of 1000001 mappings", [=](std::string& bytes) { put_u64(bytes, trailer + 40, 1000001); }},
      Case{"it tells of 18446744073709551615 mappings",
           [=](std::string& bytes) { put_u64(bytes, trailer + 40, ~0ull); }},
      Case{"which are no whole sectors", [=](std::string& bytes) { put_u64(bytes, trailer + 48, 1000); }},
      Case{"more than a device can have", [=](std::string& bytes) { put_u64(bytes, trailer + 48, 1ull << 63); }},
      Case{"mapping 1 begins at sector 1",
           [=](std::string& bytes) {
             bytes.replace(table + 16, 16, mapping({1, 4, 10}));
           }},
      Case{"mapping 0 is of sectors 7 to 9",
           [=](std::string& bytes) {
             bytes.replace(table, 16, mapping({0, 2, 7}));
           }},
      Case{"mapping 2 is of sectors 11 to 13",
           [=](std::string& bytes) {
             bytes.replace(table + 32, 16, mapping({8, 2, 11}));
           }},
      Case{"mapping 2 is of sectors 36028797018963967 to",
           [=](std::string& bytes) {
             bytes.replace(table + 32, 16, mapping({8, 2, obd::Mapping::kMaxPlace}));
           }},
      Case{"mapping 1 is of no sectors", [=](std::string& bytes) {
             bytes.replace(table + 16, 16, mapping({4, 0, 10}));
           }});
  Layers layers;
  std::string bytes = three_runs(layers);
  open(layers, bytes);
  test.change(bytes);
  CHECK_THROWS_WITH(open(layers, bytes), Catch::Contains(test.words));
}

TEST_CASE("a layer of which any byte changed is read or refused, never more", "[layers][overlaybd]") {
  Layers layers;
  const std::string bytes = three_runs(layers);
  std::mt19937 random(4);
  for (int round = 0; round < 1000; ++round) {
    std::string changed = bytes;
    // Where bytes have a meaning, mostly.
    const std::size_t places[] = {random() % 390, 6144 + random() % 64, bytes.size() - 4096 + random() % 390,
                                  random() % bytes.size()};
    for (std::size_t i = 1 + random() % 3; i > 0; --i) changed[places[random() % 4]] = static_cast<char>(random());
    layers.write("changed", changed);
    try {
      const obd::Stack stack = layers.stack({"changed"});
      std::string buffer(4096, '\0');
      if (stack.size() >= 4096) stack.read(0, buffer.data(), buffer.size());
    } catch (const Error&) {
    }
  }
}

TEST_CASE("a layer that was sealed where it lay is read", "[layers][overlaybd]") {
  Layers layers;
  three_runs(layers);
  std::string bytes = layers.bytes("top.data");
  const std::size_t end = bytes.size();
  obd::LayerHeader trailer;
  trailer.is_header = false;
  trailer.is_sealed = true;
  trailer.index_offset = end;
  trailer.index_count = 3;
  trailer.size = kSize;
  bytes += mapping({0, 2, 8}) + mapping({4, 4, 10, true}) + mapping({8, 2, 10});
  bytes.resize(end + 512);
  layers.write("in-place", bytes + trailer.bytes());
  CHECK(device_of(layers.stack({"in-place"})) == device_of(layers.stack({"sealed"})));
}

TEST_CASE("a layer is not written that readers would refuse", "[layers][overlaybd]") {
  Layers layers;
  const UniqueFd file = open_file(layers.path("fragments"), O_RDWR | O_CREAT);
  const auto output = obd::make_layer_output(file.get(), {});
  obd::LayerHeader facts;
  facts.size = 1ull << 40;
  obd::LayerWriter writer(*output, facts);
  const auto write = [&] {
    for (std::uint64_t sector = 0; sector < 4'000'000; sector += 2) writer.zeros(sector, 1);
  };
  CHECK_THROWS_WITH(write(), Catch::Contains("the layer would have more than 1000000 mappings"));
  CHECK(writer.mappings() == 999'936);
  writer.finish();
  obd::SealedLayer(obd::open_layer_file(layers.path("fragments")));
}

TEST_CASE("a check tells of layers that do not belong together", "[layers][overlaybd]") {
  const std::string one = "3F2C9D1E-0000-4000-8000-000000000001", two = "3F2C9D1E-0000-4000-8000-000000000002";
  Layers layers;
  layers.writable("a", kSize, one);
  layers.writable("b", kSize, two, one);
  layers.writable("c", kSize, "", two);
  for (const std::string name : {"a", "b"}) layers.commit({name + ".data", name + ".index"}, name);
  const auto problems = [&](const std::vector<std::string>& names) {
    std::string text;
    for (const auto& problem : obd::check(layers.paths(names), layers.silent()).problems)
      text += std::filesystem::path(problem.file).filename().native() + ": " + problem.what + "\n";
    return text;
  };
  CHECK(problems({"a", "b", "c.data", "c.index"}).empty());
  CHECK(problems({"b"}).empty());
  CHECK(problems({"b", "a"}).empty());  // the lower one tells nothing of what is above it
  CHECK(problems({"a", "c.data", "c.index"}) ==
        "c.data: it belongs on layer " + two + ", and the one below it is " + one + "\n");
  {
    auto layer = layers.open("c");
    layer.write(kSize - 512, sectors(1, 'x'));
  }
  std::string index = layers.bytes("c.index");
  put_u64(index, 48, kSize / 2);
  layers.write("c.index", index);
  CHECK(problems({"c.data", "c.index"}) == "c.data: it has sectors up to 2048, and its device has 1024\n");
}
