#include "runners/vm/pmem_plan.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::runners {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kMebibyte = 1ull << 20;

/// Images of sparse files, which lie in the store or elsewhere.
struct Images {
  TempDirectory place{fs::temp_directory_path()};
  fs::path store = place.path() / "store";
  std::vector<engine::ImageFiles> all;

  Images() { make_directories(store); }
  void add(std::uint64_t data_mebibytes, bool own = true) {
    const fs::path meta = (own ? store : place.path()) / std::to_string(all.size()), data = meta.native() + "d";
    for (const auto& [file, size] : {std::pair{meta, kMebibyte}, std::pair{data, data_mebibytes * kMebibyte}}) {
      write_file_atomic(file, "");
      fs::resize_file(file, size);
    }
    all.push_back({meta, data});
  }
  void add_compressed() {
    add(2);
    all.back().data.reset();
  }
  std::string chosen(PmemUse use, std::uint64_t memory_mebibytes) const {
    std::string text;
    for (const bool one : choose_mapped(use, all, store, memory_mebibytes * kMebibyte)) text += one ? 'm' : 'd';
    return text;
  }
};

}  // namespace

TEST_CASE("unasked, images are mapped that are worth it, as long as the structures of their pages are small",
          "[runners][pmem]") {
  Images images;
  images.add(200);
  images.add(8);
  images.add(300, false);
  images.add(1900);
  images.add(100);
  images.add_compressed();
  // A sixteenth of 512 MiB is 32 MiB, which are the structures of 2 GiB.
  CHECK(images.chosen(PmemUse::Auto, 512) == "mdddmd");
  CHECK(images.chosen(PmemUse::Auto, 1024) == "mddmmd");
  CHECK(images.chosen(PmemUse::Off, 1024) == "dddddd");
}

TEST_CASE("asked for, all that can be are mapped, or the reason is told", "[runners][pmem]") {
  Images images;
  images.add_compressed();
  images.add(300, false);
  CHECK_THROWS_WITH(images.chosen(PmemUse::On, 512), Catch::Contains("none of its layers"));
  images.add(2);
  images.add(4000);
  CHECK(images.chosen(PmemUse::On, 512) == "ddmm");
  images.add(6000);
  CHECK_THROWS_WITH(images.chosen(PmemUse::On, 512), Catch::Contains("of its memory of 512.0 MiB"));
  CHECK(images.chosen(PmemUse::On, 1024) == "ddmmm");
}

TEST_CASE("a machine has room for so many mapped images", "[runners][pmem]") {
  Images images;
  for (int i = 0; i < 25; ++i) images.add(16);
  CHECK(images.chosen(PmemUse::Auto, 4096) == std::string(24, 'm') + "d");
  CHECK_THROWS_WITH(images.chosen(PmemUse::On, 4096), Catch::Contains("25 images"));
}

TEST_CASE("a file becomes longer by a hole, once", "[runners][pmem]") {
  const TempDirectory place(fs::temp_directory_path());
  const fs::path file = place.path() / "blob";
  write_file_atomic(file, std::string((2 << 20) + 4096, 'x'));
  CHECK(make_mappable(file) == 4 << 20);
  CHECK(make_mappable(file) == 4 << 20);
  const std::string bytes = read_file(file, 8 << 20);
  CHECK(bytes == std::string((2 << 20) + 4096, 'x') + std::string((2 << 20) - 4096, '\0'));
  CHECK_THROWS_AS(make_mappable(place.path() / "none"), Error);
}

}  // namespace dsec::runners
