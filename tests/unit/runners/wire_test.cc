#include "runners/protocol/wire.h"

#include <catch2/catch.hpp>
#include <string>

namespace dsec::runners {
namespace {

TEST_CASE("a frame that is shorter than its fields say reads as empty and says so", "[runners][wire]") {
  std::string text;
  wire::Writer<std::string> writer(text);
  writer.u32(7).str("hello", 5).u64(9);
  for (std::size_t size = 0; size < text.size(); ++size) {
    wire::Reader reader(text.data(), size);
    reader.u32();
    const auto string = reader.str();
    const std::uint64_t last = reader.u64();
    CHECK_FALSE(reader.ok());
    CHECK(last == 0);
    CHECK((string.size == 5 || string.size == 0));
  }
  wire::Reader whole(text.data(), text.size());
  CHECK(whole.u32() == 7);
  CHECK(std::string(whole.str().data) == "hello");
  CHECK(whole.u64() == 9);
  CHECK(whole.ok());
  CHECK(whole.left() == 0);

  text[9] = 'x';
  text[4] = 4;  // then the byte after the string is no NUL
  wire::Reader wrong(text.data(), text.size());
  wrong.u32();
  wrong.str();
  CHECK_FALSE(wrong.ok());
}

}  // namespace
}  // namespace dsec::runners
