#include "runners/vm/qemu_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::runners {
namespace {

constexpr std::uint64_t kSize = 16 * 4096;

// What QEMU would say, in pieces.
struct Stream {
  std::string bytes;

  Stream& number(std::uint64_t value, int size) {
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
    return *this;
  }
  Stream& text(const std::string& value) { return number(value.size(), 1), bytes += value, *this; }
  Stream& begin() { return number(0x5145564d, 4).number(3, 4).number(7, 1).number(7, 4), bytes += "microvm", *this; }
  Stream& start() {
    number(1, 1).number(2, 4).text("ram").number(0, 4).number(4, 4);
    number(kSize + 4096 + 4, 8).text("microvm.ram").number(kSize, 8).text("pc.bios").number(4096, 8);
    return end();
  }
  Stream& part(int type = 2) { return number(static_cast<std::uint64_t>(type), 1).number(2, 4); }
  Stream& page(std::uint64_t address, char fill, const std::string& block = "") {
    number(address | 8 | (block.empty() ? 0x20u : 0u), 8);
    if (!block.empty()) text(block);
    bytes.append(4096, fill);
    return *this;
  }
  Stream& zeros(std::uint64_t address, const std::string& block = "") {
    number(address | 2 | (block.empty() ? 0x20u : 0u), 8);
    if (!block.empty()) text(block);
    return number(0, 1);
  }
  Stream& end() { return number(0x10, 8).number(0x7e, 1).number(2, 4); }
  Stream& rest() { return number(4, 1).number(9, 4).text("timer"), bytes += "all else", *this; }
};

struct Split {
  std::string memory, state;
};

Split split(const std::string& bytes, std::size_t piece = 100'000) {
  const TempDirectory place(std::filesystem::temp_directory_path());
  const UniqueFd memory = open_file(place.path() / "memory", O_RDWR | O_CREAT);
  const UniqueFd state = open_file(place.path() / "state", O_RDWR | O_CREAT);
  std::size_t at = 0;
  const ReadSome read = [&](char* into, std::size_t most) {
    const std::size_t count = std::min({most, piece, bytes.size() - at});
    bytes.copy(into, count, at);
    at += count;
    return count;
  };
  split_qemu_stream(read, "microvm.ram", kSize, memory.get(), state.get());
  return {read_file(place.path() / "memory"), read_file(place.path() / "state")};
}

}  // namespace

TEST_CASE("pages of the memory go to their places, and all else stays as it was", "[runners][qemu_stream]") {
  Stream with, without;
  with.begin().start().part().page(4096, 'a', "microvm.ram").page(8192, 'b').zeros(12288).page(0, 'r', "pc.bios");
  with.end().part(3).page(20480, 'c', "microvm.ram").end().rest();
  without.begin().start().part().page(0, 'r', "pc.bios").end().part(3).end().rest();
  for (const std::size_t piece : {std::size_t{1}, std::size_t{4097}, std::size_t{100'000}}) {
    const Split made = split(with.bytes, piece);
    CHECK(made.state == without.bytes);
    std::string memory(kSize, '\0');
    memory.replace(4096, 4096, 4096, 'a').replace(8192, 4096, 4096, 'b').replace(20480, 4096, 4096, 'c');
    CHECK(made.memory == memory);
  }
}

TEST_CASE("a page that was sent and is zero later is zero", "[runners][qemu_stream]") {
  Stream stream;
  stream.begin().start().part().page(4096, 'a', "microvm.ram").zeros(4096).page(8192, 'a').page(8192, 'b').end().rest();
  std::string memory(kSize, '\0');
  memory.replace(8192, 4096, 4096, 'b');
  CHECK(split(stream.bytes).memory == memory);
}

TEST_CASE("a stream that ends early is told of, wherever it does", "[runners][qemu_stream]") {
  Stream stream;
  stream.begin().start().part().page(4096, 'a', "microvm.ram").end();
  const std::size_t whole = stream.bytes.size();
  for (std::size_t size = 0; size <= whole; size += size < 200 ? 1 : 501)
    CHECK_THROWS_WITH(split(stream.bytes.substr(0, size)), Catch::Contains("cannot read what QEMU has saved"));
}

TEST_CASE("what is no such stream is refused", "[runners][qemu_stream]") {
  const auto refused = [](const Stream& stream) {
    try {
      split(stream.bytes);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("taken");
  };
  CHECK_THAT(refused(Stream().number(0x7f454c46, 4).number(3, 4)), Catch::Contains("does not begin as one"));
  CHECK_THAT(refused(Stream().number(0x5145564d, 4).number(2, 4)), Catch::Contains("another version"));
  CHECK_THAT(refused(Stream().begin().start().part().page(kSize, 'a', "microvm.ram").end().rest()),
             Catch::Contains("beyond the memory"));
  CHECK_THAT(refused(Stream().begin().start().part().number(0x40, 8)), Catch::Contains("records that are not known"));
  CHECK_THAT(refused(Stream().begin().start().start()), Catch::Contains("more than a memory"));
  CHECK_THAT(refused(Stream().begin().rest()), Catch::Contains("sections that are not known"));
  CHECK_THAT(refused(Stream().begin().start().number(3, 1).number(3, 4)),
             Catch::Contains("sections that are not known"));
  Stream much;
  much.begin().start().rest().bytes.append(kMostState, 'x');
  CHECK_THAT(refused(much), Catch::Contains("more beside the memory"));
}

}  // namespace dsec::runners
