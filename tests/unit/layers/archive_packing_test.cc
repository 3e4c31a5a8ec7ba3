#include <catch2/catch.hpp>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "layers/archive/decompress.h"

using namespace dsec;
using namespace dsec::layers;

namespace {

class Pieces : public ByteStream {
 public:
  Pieces(std::string bytes, std::size_t piece) : bytes_(std::move(bytes)), piece_(piece) {}
  std::string_view next() override {
    const std::string_view piece = std::string_view(bytes_).substr(at_, piece_);
    at_ += piece.size();
    return piece;
  }

 private:
  std::string bytes_;
  std::size_t piece_, at_ = 0;
};

std::string unpack(const std::string& bytes, std::size_t piece = 4096) {
  Pieces packed(bytes, piece);
  UnpackedStream stream(packed);
  std::string out;
  for (std::string_view part = stream.next(); !part.empty(); part = stream.next()) out += part;
  return out;
}

std::string pack(std::vector<std::string> argv, const std::string& bytes) {
  const CommandResult result = run_command({.argv = std::move(argv)}, bytes);
  REQUIRE(result.status.ok());
  return result.out;
}

std::string refusal_of(const std::string& bytes) {
  try {
    unpack(bytes);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("each packing is known by its bytes and unpacked whole, in pieces of any size", "[layers][archive]") {
  std::string content;
  for (int i = 0; i < 100'000; ++i) content += std::to_string(i * 7919 % 10007) + " ";
  for (const auto& argv :
       std::vector<std::vector<std::string>>{{"cat"}, {"gzip", "-c"}, {"zstd", "-qc"}, {"xz", "-c"}, {"bzip2", "-c"}}) {
    const std::string packed = pack(argv, content);
    CHECK(unpack(packed) == content);
    CHECK(unpack(packed, 7) == content);
  }
}

TEST_CASE("all members, frames and streams belong to the content", "[layers][archive]") {
  for (const auto& argv :
       std::vector<std::vector<std::string>>{{"gzip", "-c"}, {"zstd", "-qc"}, {"xz", "-c"}, {"bzip2", "-c"}})
    CHECK(unpack(pack(argv, "one ") + pack(argv, "") + pack(argv, "two")) == "one two");
  const std::string skippable = std::string("\x53\x2a\x4d\x18\5\0\0\0", 8) + "hello";
  CHECK(unpack(skippable + pack({"zstd", "-qc"}, "one ") + skippable + pack({"zstd", "-qc"}, "two") + skippable) ==
        "one two");
  CHECK(unpack(pack({"gzip", "-c"}, "padded") + std::string(512, '\0')) == "padded");
}

TEST_CASE("zstd may look back as far as its program can", "[layers][archive]") {
  CHECK(unpack(pack({"zstd", "-qc", "--long=31"}, "far")) == "far");
}

TEST_CASE("packed data that breaks off anywhere is refused", "[layers][archive]") {
  for (const auto& argv :
       std::vector<std::vector<std::string>>{{"gzip", "-c"}, {"zstd", "-qc"}, {"xz", "-c"}, {"bzip2", "-c"}}) {
    const std::string packed = pack(argv, "some content that is packed");
    for (std::size_t size = 6; size < packed.size(); ++size)
      CHECK(refusal_of(packed.substr(0, size)).find("layer-truncated") != std::string::npos);
  }
}

TEST_CASE("a flipped bit in packed content is refused or changes nothing", "[layers][archive]") {
  const std::string content = "some content that is packed, some content that is packed";
  for (const auto& argv : std::vector<std::vector<std::string>>{
           {"gzip", "-c"}, {"zstd", "-qc", "--check"}, {"xz", "-c"}, {"bzip2", "-c"}}) {
    const std::string packed = pack(argv, content);
    for (std::size_t at = 6; at < packed.size(); ++at) {
      std::string flipped = packed;
      flipped[at] = static_cast<char>(flipped[at] ^ 4);
      if (refusal_of(flipped).empty()) CHECK(unpack(flipped) == content);
    }
  }
  CHECK(refusal_of(pack({"gzip", "-c"}, "x") + "garbage").find("layer-damaged") != std::string::npos);
}
