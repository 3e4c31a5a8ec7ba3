#include "layers/overlaybd/mapping.h"

#include <catch2/catch.hpp>
#include <random>

#include "layers/overlaybd/extent_map.h"

using namespace dsec;
using namespace dsec::layers::overlaybd;

namespace {

constexpr std::uint64_t kSectors = 200;

/// Who has each sector, and where: what mappings mean, told plainly.
struct Sector {
  int layer = -1;
  std::uint64_t place = 0;
  bool zero = false;
  bool operator==(const Sector&) const = default;
};
using Device = std::vector<Sector>;

void paint(Device& device, const Mapping& mapping) {
  for (std::uint64_t i = 0; i < mapping.length(); ++i)
    device[mapping.offset() + i] = {mapping.layer(), mapping.zero() ? 0 : mapping.place() + i, mapping.zero()};
}

Device painted(const std::vector<Mapping>& mappings) {
  Device device(kSectors);
  for (const Mapping& mapping : mappings) paint(device, mapping);
  return device;
}

Mapping any_mapping(std::mt19937& random, std::uint8_t layer) {
  const std::uint64_t offset = random() % (kSectors - 1);
  const auto length = static_cast<std::uint32_t>(1 + random() % std::min<std::uint64_t>(kSectors - offset, 30));
  return {offset, length, 8 + random() % 1000, random() % 4 == 0, layer};
}

std::vector<Mapping> any_layer(std::mt19937& random, std::uint8_t layer) {
  ExtentMap map;
  for (std::size_t i = random() % 12; i > 0; --i) map.insert(any_mapping(random, layer));
  return map.mappings();
}

}  // namespace

TEST_CASE("a mapping stands in a file as the format has it", "[layers][overlaybd]") {
  const Mapping mapping(0x123456789, 0x1234, 0x5432109876, true, 0xAB);
  std::string bytes;
  mapping.append_to(bytes);
  // 50 bits of offset, 14 of length, 55 of place, 1 of zero, 8 of layer.
  CHECK(bytes == std::string("\x89\x67\x45\x23\x01\x00\xd0\x48\x76\x98\x10\x32\x54\x00\x80\xab", 16));
  CHECK(Mapping::parse(bytes.data()) == mapping);
  CHECK(mapping.offset() == 0x123456789);
  CHECK(mapping.length() == 0x1234);
  CHECK(mapping.place() == 0x5432109876);
  CHECK(mapping.zero());
  CHECK(mapping.layer() == 0xAB);
}

TEST_CASE("neighbours are joined where device and file go on, below 16383 sectors", "[layers][overlaybd]") {
  Mapping mapping(0, 64, 8);
  CHECK(mapping.join({64, 64, 72}));
  CHECK(mapping == Mapping(0, 128, 8));
  CHECK_FALSE(mapping.join({129, 1, 136}));            // a gap on the device
  CHECK_FALSE(mapping.join({128, 1, 137}));            // a gap in the file
  CHECK_FALSE(mapping.join({128, 1, 136, true}));      // zeros
  CHECK_FALSE(mapping.join({128, 1, 136, false, 1}));  // another layer's
  CHECK_FALSE(mapping.join({128, 16255, 136}));        // 16383
  CHECK(mapping.join({128, 16254, 136}));
  Mapping zeros(0, 5, 8, true);
  CHECK(zeros.join({5, 5, 8, true}));
}

TEST_CASE("what is inserted last counts", "[layers][overlaybd]") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    ExtentMap map;
    Device device(kSectors);
    for (int i = 0; i < 40; ++i) {
      const Mapping mapping = any_mapping(random, static_cast<std::uint8_t>(i));
      map.insert(mapping);
      paint(device, mapping);
      REQUIRE(fault_of(map.mappings(), 8, 2000) == "");
      REQUIRE(painted(map.mappings()) == device);
    }
    const std::uint64_t from = random() % kSectors, to = from + random() % (kSectors - from);
    std::vector<Mapping> found, expected;
    map.visit(from, to, [&](const Mapping& mapping) { found.push_back(mapping); });
    for (const Mapping& mapping : map.mappings())
      if (mapping.end() > from && mapping.offset() < to) expected.push_back(mapping);
    REQUIRE(found == expected);
  }
}

TEST_CASE("merged layers show what painting one over the other shows", "[layers][overlaybd]") {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::vector<Mapping>> layers(random() % 9);
    Device device(kSectors);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layers[i] = any_layer(random, static_cast<std::uint8_t>(i));
      for (const Mapping& mapping : layers[i]) paint(device, mapping);
    }
    const std::vector<Mapping> merged = merge(layers);
    REQUIRE(fault_of(merged, 8, 2000) == "");
    REQUIRE(painted(merged) == device);
  }
}

TEST_CASE("each fault of mappings is told", "[layers][overlaybd]") {
  CHECK(fault_of({{0, 8, 8}, {8, 8, 16}}, 8, 24) == "");
  CHECK(fault_of({{0, 8, 8}, {7, 8, 16}}, 8, 24) ==
        "mapping 1 begins at sector 7, before the end of the one before it");
  CHECK(fault_of({{0, 0, 8}}, 8, 24) == "mapping 0 is of no sectors");
  CHECK(fault_of({{0, 8, 7}}, 8, 24) ==
        "mapping 0 is of sectors 7 to 15 of the file, and its data are sectors 8 to 24");
  CHECK(fault_of({{0, 8, 17}}, 8, 24) ==
        "mapping 0 is of sectors 17 to 25 of the file, and its data are sectors 8 to 24");
  CHECK(fault_of({{0, 8, 24, true}}, 8, 24) == "");
  CHECK(fault_of({{0, 8, 25, true}}, 8, 24) ==
        "mapping 0 is of sectors 25 to 25 of the file, and its data are sectors 8 to 24");
  CHECK(fault_of({{Mapping::kMaxOffset - 1, 8, 8}}, 8, 24) == "mapping 0 goes beyond what a device can have");
}
