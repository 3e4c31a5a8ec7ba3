#include "core/model/data_index.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/base/little_endian.h"

namespace dsec::test {
namespace {

using Catch::Matchers::Contains;

constexpr std::uint64_t kMiB = 1 << 20;

/// Data of 10 MiB in two parts: a small file, one behind a hole, one that the second part has, and one that lies before
/// the others in the first.
DataIndex index() {
  return {Digest::of("data"),
          10 * kMiB,
          {{Digest::of("first"), 8 * kMiB}, {Digest::of("second"), 4 * kMiB}},
          {{0, 100, 0, 2560}, {8192, 5000, 0, 3584}, {16384, kMiB, 1, 512}, {2 * kMiB, 300, 0, 512}}};
}

std::string why(const std::string& bytes) {
  try {
    DataIndex::parse(bytes, "the index");
    return "taken";
  } catch (const Error& error) {
    return error.message();
  }
}

/// What a part has at a place, so that it shows where bytes came from.
std::string part_bytes(std::uint32_t part, std::uint64_t offset, std::uint64_t size) {
  std::string bytes;
  for (std::uint64_t i = 0; i < size; ++i) bytes += static_cast<char>((offset + i) * 2654435761u >> 13 ^ part << 6);
  return bytes;
}

/// The data byte by byte, as the runs say it.
std::string expected(const DataIndex& from, std::uint64_t at, std::uint64_t size) {
  std::string bytes(size, '\0');
  for (const DataIndex::Run& run : from.runs)
    for (std::uint64_t i = 0; i < run.length; ++i)
      if (run.at + i >= at && run.at + i < at + size)
        bytes[run.at + i - at] = part_bytes(run.part, run.offset + i, 1)[0];
  return bytes;
}

std::string followed(const DataIndex& from, std::uint64_t at, std::uint64_t size) {
  std::string bytes(size, '\0');
  for (const PartRead& read : reads_of(from, at, size)) {
    const std::string got = part_bytes(read.part, read.offset, read.length);
    for (const PartRead::Piece& piece : read.pieces) {
      REQUIRE(piece.from + piece.length <= read.length);
      REQUIRE(piece.to + piece.length <= size);
      bytes.replace(piece.to, piece.length, got, piece.from, piece.length);
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("an index comes back from its bytes as it was", "[model][index]") {
  CHECK(DataIndex::parse(index().bytes(), "it") == index());
  const DataIndex empty{Digest::of(""), 4096, {}, {}};
  CHECK(DataIndex::parse(empty.bytes(), "it") == empty);
  CHECK(reads_of(empty, 0, 4096).empty());
}

TEST_CASE("what is read by an index are the bytes of the data", "[model][index]") {
  const DataIndex made = index();
  for (const auto& [at, size] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 64 << 10},
                                                                                     {0, 1},
                                                                                     {99, 1},
                                                                                     {100, 1},
                                                                                     {99, 9000},
                                                                                     {8192, 5000},
                                                                                     {13191, 2},
                                                                                     {13192, 3192},
                                                                                     {16384, 70000},
                                                                                     {kMiB, 65536},
                                                                                     {16384 + kMiB - 1, 2},
                                                                                     {2 * kMiB + 100, 10},
                                                                                     {9 * kMiB, kMiB},
                                                                                     {10 * kMiB - 1, 1}})
    CHECK(followed(made, at, size) == expected(made, at, size));
}

TEST_CASE("neighbours in a part are read together, and others are not", "[model][index]") {
  const std::vector<PartRead> reads = reads_of(index(), 0, 3 * kMiB);
  REQUIRE(reads.size() == 2);
  CHECK(reads[0].part == 0);
  CHECK(reads[0].offset == 512);
  CHECK(reads[0].length == 3584 + 5000 - 512);
  CHECK(reads[0].pieces.size() == 3);
  CHECK(reads[1].length == kMiB);

  DataIndex far = index();
  far.runs = {{0, 100, 0, 0}, {4096, 100, 0, 100 + (64 << 10)}, {8192, 100, 0, 201 + 2 * (64 << 10)}};
  const std::vector<PartRead> apart = reads_of(far, 0, 12288);
  REQUIRE(apart.size() == 2);
  CHECK(apart[0].length == 200 + (64 << 10));
  CHECK(apart[1].offset == 201 + 2 * (64 << 10));
}

TEST_CASE("requests stay bounded however many neighbours there are", "[model][index]") {
  DataIndex many{Digest::of("data"), 64 * kMiB, {{Digest::of("first"), 1ull << 40}}, {}};
  for (std::uint64_t i = 0; i < 16 * 1024; ++i) many.runs.push_back({i * 4096, 1, 0, i * (32 << 10)});
  const std::vector<PartRead> reads = reads_of(many, 0, 64 * kMiB);
  CHECK(reads.size() == 64);
  for (const PartRead& read : reads) CHECK(read.length <= 8 * kMiB);
}

TEST_CASE("runs of one part may go back and forth, and lie upon each other there", "[model][index]") {
  DataIndex made = index();
  made.runs = {{0, 4096, 0, 4096}, {4096, 4096, 0, 0}, {8192, 4096, 0, 2048}, {12288, 512, 0, 4096}};
  CHECK(DataIndex::parse(made.bytes(), "it") == made);
  CHECK(followed(made, 0, 16384) == expected(made, 0, 16384));
}

TEST_CASE("an index that leads out of its data or its parts is refused", "[model][index]") {
  const auto with = [](std::vector<DataIndex::Run> runs) {
    DataIndex made = index();
    made.runs = std::move(runs);
    return made.bytes();
  };
  CHECK_THAT(why(with({{10 * kMiB - 10, 11, 0, 0}})), Contains("a run ends beyond the data"));
  CHECK_THAT(why(with({{0, kMiB, 0, 0}, {kMiB, 9 * kMiB + 1, 0, 0}})), Contains("a run ends beyond the data"));
  CHECK_THAT(why(with({{0, 0, 0, 0}})), Contains("a run ends beyond the data"));
  CHECK_THAT(why(with({{0, 10, 0, 8 * kMiB - 9}})), Contains("a run ends beyond its part"));
  CHECK_THAT(why(with({{0, 4 * kMiB + 1, 1, 0}})), Contains("a run ends beyond its part"));
  CHECK_THAT(why(with({{0, 10, 1, 1ull << 59}})), Contains("a run ends beyond its part"));
  CHECK(why(with({{0, 4 * kMiB, 1, 0}})) == "taken");
  std::string other_part = with({{0, 10, 1, 0}});
  other_part[other_part.size() - 2] = 2;
  CHECK_THAT(why(other_part), Contains("a part that is not listed"));
  std::string before_its_part = with({{0, 10, 1, 0}});
  before_its_part.back() = 1;  // one back from the first byte
  CHECK_THAT(why(before_its_part), Contains("a run ends beyond its part"));
}

TEST_CASE("bytes that are no index are refused, wherever they end", "[model][index]") {
  const std::string whole = index().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    CHECK(why(whole.substr(0, size)) != "taken");
  }
  CHECK_THAT(why(whole + '\0'), Contains("something follows its runs"));
  CHECK_THAT(why("x" + whole), Contains("another type"));
  std::string newer = whole;
  put_u32(newer, 8, 2);
  CHECK_THAT(why(newer), Contains("it has format 2, this dsec knows 1"));
  std::string parts = whole;
  put_u32(parts, 12, 0xffffffff);
  CHECK_THAT(why(parts), Contains("the list of parts"));
  std::string runs = whole;
  put_u64(runs, 56, ~0ull);
  CHECK_THAT(why(runs), Contains("fewer runs than it says"));
  std::string size = whole;
  put_u64(size, 16, ~0ull);
  CHECK_THAT(why(size), Contains("impossible size"));
  const DataIndex one{Digest::of("data"), 4096, {{Digest::of("first"), 4096}}, {{0, 1, 0, 0}}};
  CHECK_THAT(why(one.bytes().substr(0, one.bytes().size() - 4) + std::string(12, '\xff')), Contains("too large"));
  CHECK_THAT(why(whole + std::string(kLargestDataIndex, 'x')), Contains("more than"));
}

}  // namespace dsec::test
