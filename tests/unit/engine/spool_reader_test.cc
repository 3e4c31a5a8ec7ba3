#include "core/engine/spool_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "core/base/files.h"
#include "core/base/spool_record.h"

namespace dsec::engine {
namespace {

std::string record(std::uint64_t time_us, std::uint32_t stream, const std::string& data) {
  const SpoolRecord head{time_us, static_cast<std::uint32_t>(data.size()), stream};
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + data;
}

SpoolPart part(const std::string& bytes) {
  UniqueFd file(::memfd_create("spool", MFD_CLOEXEC));
  write_all(file.get(), bytes);
  return {std::move(file), bytes.size()};
}

std::string read(std::vector<SpoolPart> parts, std::uint64_t out_dropped = 0, std::uint64_t err_dropped = 0) {
  std::string text;
  read_spool(parts, {out_dropped, err_dropped}, [&](unsigned stream, auto, std::string_view data) {
    text += std::to_string(stream + 1) + "<" + std::string(data) + ">";
  });
  return text;
}

std::vector<SpoolPart> parts_of(std::initializer_list<std::string> texts) {
  std::vector<SpoolPart> parts;
  for (const std::string& text : texts) parts.push_back(part(text));
  return parts;
}

TEST_CASE("records of several files come in the order of their time", "[engine][spool]") {
  CHECK(read(parts_of({record(1, 1, "a") + record(2, 2, "b"), record(4, 1, "d"),
                       record(3, 2, "c") + record(5, 2, "e")})) == "1<a>2<b>2<c>1<d>2<e>");
}

TEST_CASE("what was dropped is told once, where it is missing", "[engine][spool]") {
  CHECK(read(parts_of({record(1, 1, "head") + record(2, 2, "x"), record(3, 1, "tail") + record(4, 1, "end")}), 77) ==
        "1<head>2<x>1<\n[dsec: 77 bytes dropped here]\n>1<tail>1<end>");
}

TEST_CASE("a damaged or cut record ends its file and no more", "[engine][spool]") {
  const std::string good = record(1, 1, "good");
  CHECK(read(parts_of({good + record(2, 1, "cut").substr(0, 17)})) == "1<good>");
  CHECK(read(parts_of({good + record(2, 7, "no such stream"), record(3, 2, "other")})) == "1<good>2<other>");
  std::string huge = record(2, 1, "x");
  const std::uint32_t length = 0xffffffff;
  std::memcpy(huge.data() + 8, &length, sizeof length);
  CHECK(read(parts_of({good + huge, record(3, 2, "other")})) == "1<good>2<other>");
  CHECK(read({}).empty());
}

}  // namespace
}  // namespace dsec::engine
