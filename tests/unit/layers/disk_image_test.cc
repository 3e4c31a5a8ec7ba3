#include "layers/disk/disk_image.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/qcow2_writer.h"
#include "tests/support/test_store.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  testing::TestStore store{scratch.path() / "store"};
  fs::path file = scratch.path() / "disk";

  void write(std::string content) const { write_all(open_file(file, O_RDWR | O_CREAT | O_TRUNC).get(), content); }
  void write_qcow2(std::uint64_t size) const {
    Qcow2Writer(open_file(file, O_RDWR | O_CREAT | O_TRUNC).get(), size).finish();
  }
  // At its place in the header, most significant byte first.
  void change(off_t at, std::string_view bytes) const {
    const UniqueFd fd = open_file(file, O_WRONLY);
    REQUIRE(::pwrite(fd.get(), bytes.data(), bytes.size(), at) == static_cast<ssize_t>(bytes.size()));
  }
  DiskHeader header() const { return read_disk_header(open_file(file, O_RDONLY).get(), "it"); }
  engine::StoredLayer take(const std::string& text, const char* name = "base/os") {
    Progress silent;
    return import_disk(store, DiskRequest::parse(text), {.name = LayerName::parse(name)}, silent);
  }
};

TEST_CASE_METHOD(Fixture, "a disk is known by its beginning", "[layers][disk]") {
  write(std::string(1 << 20, 'x'));
  CHECK(header().format == "raw");
  CHECK(header().size == 1 << 20);
  write_qcow2(4ull << 30);
  CHECK(header().format == "qcow2");
  CHECK(header().size == 4ull << 30);
}

TEST_CASE_METHOD(Fixture, "an image that is not whole by itself is refused", "[layers][disk]") {
  write_qcow2(1 << 30);
  change(8, std::string_view("\0\0\0\0\0\0\x02\0", 8));
  CHECK_THROWS_WITH(header(), Catch::Contains("no disk"));
  write_qcow2(1 << 30);
  change(79, "\x04");
  CHECK_THROWS_AS(header(), Error);
  write_qcow2(1 << 30);
  change(35, "\x01");
  CHECK_THROWS_AS(header(), Error);
  write_qcow2(1 << 30);
  change(79, "\x01");
  CHECK_THROWS_AS(header(), Error);
  write_qcow2(1 << 30);
  change(72, "\x80");
  CHECK_THROWS_AS(header(), Error);
}

TEST_CASE_METHOD(Fixture, "what is of another kind, or no disk at all, is refused by its name", "[layers][disk]") {
  const auto told = [&] {
    try {
      header();
    } catch (const Error& error) {
      return error.chain().back();
    }
    return std::string();
  };
  write("KDMV" + std::string(1 << 16, '\0'));
  CHECK_THAT(told(), Catch::Contains("VMDK"));
  write(std::string(1000, 'x'));
  CHECK_THAT(told(), Catch::Contains("sectors of 512 bytes"));
  write("few");
  CHECK_THAT(told(), Catch::Contains("3 bytes"));
}

TEST_CASE_METHOD(Fixture, "a disk is taken as it is, as one blob of its own kind", "[layers][disk]") {
  const std::string content = std::string(1 << 20, 'x') + std::string(1 << 20, '\0');
  write(content);
  const engine::StoredLayer layer = take("disk:" + file.native() + "?firmware=uefi&agent=yes");
  REQUIRE(layer.manifest.is_disk());
  const LayerImage& image = layer.manifest.images.front();
  CHECK(image.disk->format == "raw");
  CHECK(image.disk->firmware == "uefi");
  CHECK(image.disk->agent);
  CHECK(image.disk->size == content.size());
  CHECK(image.blob(BlobRole::Disk).digest == Digest::of(content));
  CHECK(LayerManifest::parse(layer.manifest.canonical(), "it") == layer.manifest);
}

TEST_CASE_METHOD(Fixture, "only a base is a disk", "[layers][disk]") {
  write(std::string(1 << 20, 'x'));
  CHECK_THROWS_AS(take("disk:" + file.native(), "workspace/os"), Error);
}

TEST_CASE_METHOD(Fixture, "a wrong word about a disk is refused", "[layers][disk]") {
  for (const char* wrong : {"disk:", "disk:x?firmware=dos", "disk:x?size=3", "disk:x?agent"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(DiskRequest::parse(wrong), Error);
  }
}

TEST_CASE_METHOD(Fixture, "a disk that is other than its layer says is refused", "[layers][disk]") {
  write_qcow2(1 << 30);
  CHECK_NOTHROW(check_disk(file, {"qcow2", "bios", 1 << 30, false}));
  CHECK_THROWS_AS(check_disk(file, {"qcow2", "bios", 1 << 20, false}), Error);
  write(std::string(1 << 20, 'x'));
  CHECK_THROWS_AS(check_disk(file, {"qcow2", "bios", 1 << 20, false}), Error);
  // A raw one may begin with anything.
  write("QFI\xfb" + std::string((1 << 20) - 4, '\0'));
  CHECK_NOTHROW(check_disk(file, {"raw", "bios", 1 << 20, false}));
}

}  // namespace
}  // namespace dsec::layers
