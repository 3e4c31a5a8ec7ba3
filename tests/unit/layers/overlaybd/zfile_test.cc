#include "layers/overlaybd/zfile_reader.h"

#include "core/base/little_endian.h"
#include "layers/overlaybd/checksum.h"
#include "layers/overlaybd/layer_file.h"
#include "layers/overlaybd/layer_output.h"
#include "tests/unit/layers/overlaybd/layers.h"

using namespace dsec;
using namespace dsec::testing;

namespace {

struct Files {
  Layers layers;

  std::string packed(std::string_view content, const obd::Packing& packing) {
    {
      const UniqueFd file = open_file(layers.path("packed"), O_RDWR | O_CREAT | O_TRUNC);
      const auto output = obd::make_layer_output(file.get(), packing);
      // In pieces that have nothing to do with blocks.
      for (std::size_t at = 0; at < content.size(); at += 10007) output->write(content.substr(at, 10007));
      const std::uint64_t size = output->finish();
      CHECK(std::filesystem::file_size(layers.path("packed")) == size);
    }
    return layers.bytes("packed");
  }
  std::string unpacked(std::string_view bytes) {
    layers.write("packed", bytes);
    const obd::LayerFile file = obd::open_layer_file(layers.path("packed"));
    return file.bytes->read(0, static_cast<std::size_t>(file.bytes->size()));
  }
};

/// Writes a number and makes the checksum of the header around it right again.
void forge(std::string& bytes, std::size_t header, std::size_t at, std::uint64_t number, std::size_t size) {
  put_number(bytes, header + at, number, size);
  put_u32(bytes, header + 28, 0);
  put_u32(bytes, header + 28, obd::plain_crc32c(0, bytes.substr(header, 512)));
}

}  // namespace

TEST_CASE("what is compressed is read at any place", "[layers][overlaybd]") {
  const auto compression = GENERATE(obd::Compression::Lz4, obd::Compression::Zstd);
  const bool tar = GENERATE(false, true);
  Files files;
  std::mt19937 random(7);
  for (const std::uint32_t block_size : {4096u, 32768u})
    for (const std::size_t size : {0, 1, 4095, 4096, 4097, 300000, 2500000}) {
      const std::string content = noise(random, size);
      const std::string packed = files.packed(content, {compression, block_size, tar});
      CHECK((size < 100000 || packed.size() < size));
      REQUIRE(files.unpacked(packed) == content);
      const obd::LayerFile file = obd::open_layer_file(files.layers.path("packed"));
      CHECK(file.in_tar == tar);
      REQUIRE(file.zfile);
      CHECK(file.zfile->block_size == block_size);
      for (int i = 0; i < 30 && size > 0; ++i) {
        const std::size_t at = random() % size, length = random() % (size - at);
        REQUIRE(file.bytes->read(at, length) == content.substr(at, length));
      }
      CHECK_THROWS_WITH(file.bytes->read(1, size), Catch::Contains("beyond its end"));
    }
}

TEST_CASE("header and trailer of a ZFile are those of the format", "[layers][overlaybd]") {
  Files files;
  const std::string packed = files.packed(std::string(10000, 'x'), {obd::Compression::Lz4, 4096, false});
  const Fields head(packed), tail(std::string_view(packed).substr(packed.size() - 512));
  CHECK(packed.substr(0, 24) == std::string("ZFile\0\1\0tuji.yyf@Alibaba", 24));
  CHECK(head.u32(24) == 96);
  CHECK(head.u64(32) == 27);
  CHECK(tail.u64(32) == 22);
  CHECK(head.u64(40) == packed.size() - 512 - 3 * 4);
  CHECK(head.u64(48) == 3);
  CHECK(head.u64(56) == 10000);
  CHECK(head.u32(72) == 4096);
  CHECK((head.u8(76) == 1 && head.u8(77) == 0 && head.u8(88) == 1));
  CHECK(packed.substr(40, 472) == packed.substr(packed.size() - 472));
}

TEST_CASE("no flipped bit of a ZFile goes unseen where it counts", "[layers][overlaybd]") {
  Files files;
  std::mt19937 random(9);
  const std::string content = noise(random, 30000);
  const std::string packed =
      files.packed(content, {GENERATE(obd::Compression::Lz4, obd::Compression::Zstd), 4096, false});
  std::size_t refused = 0;
  for (std::size_t at = 0; at < packed.size(); at += 1 + random() % 9) {
    std::string changed = packed;
    changed[at] = static_cast<char>(changed[at] ^ 1 << random() % 8);
    try {
      const std::string read = files.unpacked(changed);
      // The trailer is a copy that is not read; without its magic it is no ZFile at all; and it may say that it has no
      // checksum of the header.
      REQUIRE((at >= packed.size() - 512 || at < 24 || at == 32));
      REQUIRE((read == content || read == changed));
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("a ZFile that is cut off is refused", "[layers][overlaybd]") {
  Files files;
  const std::string packed = files.packed(std::string(30000, 'x'), {obd::Compression::Zstd, 4096, false});
  for (std::size_t size = 24; size < packed.size() - 512; size += 7)
    if (size >= 512) REQUIRE_THROWS_AS(files.unpacked(packed.substr(0, size)), Error);
}

TEST_CASE("a ZFile with numbers that cannot be is refused, saying which", "[layers][overlaybd]") {
  struct Case {
    std::size_t at;
    std::uint64_t number;
    std::size_t size;
    const char* words;
  };
  const Case test =
      GENERATE(Case{40, 1ull << 60, 8, "does not fit into it"}, Case{40, ~0ull, 8, "does not fit into it"},
               Case{40, 511, 8, "has a length of"}, Case{48, 1ull << 62, 8, "it tells of 4611686018427387904 blocks"},
               Case{48, 4, 8, "its size needs 3"}, Case{56, 1ull << 50, 8, "its size needs"},
               Case{56, 8192, 8, "its size needs 2"}, Case{64, 5, 4, "the checksum of the table"},
               Case{72, 0, 4, "its blocks are of 0 bytes"}, Case{72, 5000, 4, "its blocks are of 5000 bytes"},
               Case{72, 1u << 31, 4, "its blocks are of 2147483648 bytes"}, Case{76, 0, 1, "does not know (0)"},
               Case{76, 9, 1, "does not know (9)"}, Case{76, 2, 1, "does not unpack to 4096 bytes"},
               Case{78, 1, 1, "with a dictionary"}, Case{84, 1, 4, "with a dictionary"},
               Case{32, 27 | 32, 8, "compressed table of blocks"}, Case{32, 26, 8, "its header is none of a data file"},
               Case{32, 25, 8, "its header is none of a data file"});
  Files files;
  std::string packed = files.packed(std::string(10000, 'x'), {obd::Compression::Lz4, 4096, false});
  forge(packed, 0, test.at, test.number, test.size);
  CHECK_THROWS_WITH(files.unpacked(packed), Catch::Contains(test.words));
}

TEST_CASE("a ZFile without checksums, or with a header written first, is read", "[layers][overlaybd]") {
  Files files;
  const std::string content(10000, 'x');
  std::string packed = files.packed(content, {obd::Compression::Lz4, 4096, false});
  // As it comes from a stream: nothing but what was known at the beginning.
  for (std::size_t at = 40; at < 72; ++at) packed[at] = 0;
  forge(packed, 0, 32, 19, 8);
  CHECK(files.unpacked(packed) == content);
  std::string worse = packed;
  worse[worse.size() - 500] ^= 1;
  CHECK_THROWS_WITH(files.unpacked(worse), Catch::Contains("it has no trailer") || Catch::Contains("of its trailer"));
  // No digests: flag 16 is gone, and what it guards is not looked at.
  packed[32] = 3;
  packed[packed.size() - 480] = 6;
  packed[28] ^= 1;
  CHECK(files.unpacked(packed) == content);
}

TEST_CASE("blocks have sizes that the project's reader takes", "[layers][overlaybd]") {
  Files files;
  for (const std::uint32_t size : {0u, 512u, 5000u, 65536u})
    CHECK_THROWS_WITH(files.packed("", {obd::Compression::Lz4, size, false}), Catch::Contains("cannot be compressed"));
}

TEST_CASE("an archive is read whose sizes make sense", "[layers][overlaybd]") {
  Files files;
  const std::string good = files.packed("content", {std::nullopt, 4096, true});
  CHECK(files.unpacked(good) == "content");
  CHECK(good.size() == 1536 + 512 + 1024);
  const auto refused = [&](std::size_t at, std::string_view text, const std::string& words) {
    std::string bytes = good;
    bytes.replace(at, text.size(), text);
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(bytes[i]);
    char digits[9];
    std::snprintf(digits, sizeof digits, "%6o ", sum);
    bytes.replace(148, 7, digits);
    CHECK_THROWS_WITH(files.unpacked(bytes), Catch::Contains(words));
  };
  refused(512, "13 size=99999\n", "does not tell the size");  // one byte longer than the header says
  refused(512, "9 path=7\n", "does not tell the size");
  refused(512, "9 size=-\n", "does not tell the size");
  refused(124, "       7777 ", "its PAX header has 4095 bytes");
  refused(124, "       x777 ", "is no number");
  refused(124, "          0 ", "its PAX header has 0 bytes");
  // More than there is.
  std::string bytes = files.packed(std::string(1000, 'x'), {std::nullopt, 4096, true});
  const std::size_t digits = bytes.find("size=1000");
  bytes[digits + 5] = '9';
  CHECK_THROWS_WITH(files.unpacked(bytes), Catch::Contains("it tells of 9000 bytes at 1536"));
}
