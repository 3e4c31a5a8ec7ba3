#include "layers/image_index.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "layers/oci/image_source.h"
#include "tests/support/test_store.h"
#include "tests/unit/layers/fake_registry.h"
#include "tests/unit/layers/tar_builder.h"

namespace dsec::layers {
namespace {

using Catch::Matchers::Contains;

std::string noise(std::size_t size, unsigned seed) {
  std::string bytes;
  for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
  return bytes;
}

/// Layers with everything that decides where contents lie: deletions, further names, holes, equal files, files of
/// several chunks, a file of which only the end of a chunk is there.
std::vector<ImageBuilder::Layer> layers() {
  const std::string map = "512,512,1500000,700,3145728,1,3200000,0";
  const auto below = TarBuilder()
                         .dir("usr")
                         .file("usr/big", noise(2'500'000, 1))
                         .file("usr/gone", noise(5000, 2))
                         .file("usr/small", "small")
                         .file("usr/empty")
                         .hardlink("usr/alias", "usr/big")
                         .file("opt/below", noise(70'000, 3));
  const auto above =
      TarBuilder()
          .file("usr/.wh.gone")
          .file("usr/small", "another small one")
          .file("usr/again", noise(2'500'000, 1))
          .file("sparse", noise(1213, 4), {.pax = {{"GNU.sparse.size", "3200000"}, {"GNU.sparse.map", map}}})
          .file("zeros", std::string(1'100'000, '\0'))
          .file("z", noise(100, 5));
  return {{below.str(), {}}, {above.str(), {}}, {below.str(), {}}};
}

ImportOptions options(std::uint64_t collapse_limit = SourceOptions{}.collapse_limit) {
  return {.name = LayerName::parse("base/x"), .platform = "linux/amd64", .collapse_limit = collapse_limit};
}

struct Indexed {
  explicit Indexed(const std::vector<ImageBuilder::Layer>& contents, const ImportOptions& how = options()) {
    registry.root = registry.builder.image(contents);
    Progress quiet;
    const auto session = store.begin_session();
    made = index_image(store, *session, "//h.example/x:1", opener(registry), registry.directory.path(), how, quiet);
  }
  std::string data(std::size_t image) {
    return read_file(store.blob_path(made.layer.images.at(image).blob(BlobRole::Data).digest));
  }
  std::string followed(std::size_t image, std::uint64_t at, std::uint64_t size) {
    std::string bytes(size, '\0');
    const DataIndex& index = made.indexes.at(image);
    for (const PartRead& read : reads_of(index, at, size)) {
      const std::string part = read_file(registry.builder.blob_path(index.parts.at(read.part).blob));
      REQUIRE(part.size() == index.parts.at(read.part).size);
      for (const PartRead::Piece& piece : read.pieces)
        bytes.replace(piece.to, piece.length, part, read.offset + piece.from, piece.length);
    }
    return bytes;
  }

  FakeRegistry registry;
  testing::TestStore store{registry.directory.path() / "store"};
  engine::ImageIndex made{{}, {}, {Digest::of(""), 0, ""}};
};

void check_all(Indexed& indexed) {
  REQUIRE(indexed.made.indexes.size() == indexed.made.layer.images.size());
  for (std::size_t image = 0; image < indexed.made.indexes.size(); ++image) {
    const DataIndex& index = indexed.made.indexes[image];
    const std::string data = indexed.data(image);
    CHECK(index.data == Digest::of(data));
    CHECK(index.size == data.size());
    CHECK(DataIndex::parse(index.bytes(), "it") == index);
    for (std::uint64_t at = 0; at < data.size(); at += 1 << 16) {
      const std::uint64_t size = std::min<std::uint64_t>(1 << 16, data.size() - at);
      CHECK(indexed.followed(image, at, size) == data.substr(at, size));
    }
    CHECK(indexed.followed(image, 0, data.size()) == data);
  }
}

TEST_CASE("an index leads to the data of the layer in the layers of the image", "[layers][index]") {
  Indexed indexed(layers());
  check_all(indexed);
  REQUIRE(indexed.made.indexes.size() == 1);
  // What nothing of the data lies in is no part; the same layer twice is one.
  CHECK(indexed.made.indexes[0].parts.size() == 2);
  CHECK(indexed.made.image.digest.str() == indexed.registry.root["digest"].get<std::string>());
}

TEST_CASE("an indexed image is the layer that importing it makes", "[layers][index]") {
  Indexed indexed(layers());
  ImageSource source("//h.example/x:1", opener(indexed.registry), indexed.registry.directory.path());
  Progress quiet;
  CHECK(import_layer(indexed.store, source, options(), quiet).manifest == indexed.made.layer);
}

TEST_CASE("each image of a layer has an index of its own", "[layers][index]") {
  Indexed indexed(layers(), options(1));
  CHECK(indexed.made.indexes.size() == 3);
  check_all(indexed);
}

TEST_CASE("an image without contents has an index that leads nowhere", "[layers][index]") {
  Indexed indexed({{TarBuilder().dir("a").file("a/empty").file("zeros", std::string(1 << 20, '\0')).str(), {}}});
  check_all(indexed);
  CHECK(indexed.made.indexes.at(0).parts.empty());
}

TEST_CASE("an image with a compressed layer is not indexed, and the layer is named", "[layers][index]") {
  const std::string tar = TarBuilder().file("a", "a").str();
  try {
    Indexed indexed({{tar, {}}, {"packed", tar}});
    FAIL("it was indexed");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("layer 2 of 2 (" + Digest::of("packed").brief() + ") is compressed"));
    REQUIRE(error.hints().size() == 2);
    CHECK_THAT(error.hints()[0], Contains("skopeo copy --dest-decompress docker://h.example/x:1 dir:"));
  }
}

}  // namespace
}  // namespace dsec::layers
