#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/sqlite.h"
#include "core/base/units.h"

namespace dsec {
namespace {
using namespace std::chrono_literals;

TEST_CASE("sizes are read as docker users type them", "[base][units]") {
  CHECK(parse_size("64MiB") == 64u << 20);
  CHECK(parse_size("2g") == 2ull << 30);
  CHECK(parse_size("3GB") == 3'000'000'000);
  CHECK(parse_size("1.5k") == 1536);
  for (const char* wrong : {"", "x", "-1", "1.", "1..2", "5 MB", "1e3", "99999999999T"})
    CHECK_THROWS_AS(parse_size(wrong), Error);
}

TEST_CASE("durations are read and written", "[base][units]") {
  CHECK(parse_duration("90") == 90s);
  CHECK(parse_duration("1h30m") == 90min);
  CHECK(parse_duration("250ms") == 250ms);
  CHECK(format_duration(90min) == "1h30m");
  CHECK(format_duration(2500ms) == "2.5s");
  for (const char* wrong : {"", "m", "1h30", "5 m", "-3s", "1y"}) CHECK_THROWS_AS(parse_duration(wrong), Error);
}

TEST_CASE("a digest is exactly sha256 in lowercase hex", "[base][digest]") {
  CHECK(Digest::of("").hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Digest::parse(Digest::of("x").str()) == Digest::of("x"));
  CHECK_THROWS_AS(Digest::parse("sha256:abc"), Error);
  CHECK_THROWS_AS(Digest::parse(std::string(64, 'A')), Error);
}

TEST_CASE("JSON that is wrong is told with its place", "[base][json]") {
  CHECK_THROWS_WITH(parse_json("{\n \"a\": ]", "m.json"), "m.json:2:7: no valid JSON");
  CHECK_THROWS_WITH(parse_json("{\"a\":1,\"a\":2}", "m.json"), "m.json: key 'a' stands twice in one object");
  CHECK_THROWS_AS(parse_json(std::string(100000, '['), "m.json"), Error);
  CHECK_THROWS_WITH(parse_json("{\"a\":1e999}", "m.json"), "m.json: a number is larger than any that can be kept");
  CHECK(canonical_json(parse_json("{\"b\": 1, \"a\": [ ]}", "x")) == "{\"a\":[],\"b\":1}");
}

TEST_CASE("who reads a database does not wait for who writes it", "[base][sqlite]") {
  TempDirectory scratch(std::filesystem::temp_directory_path());
  const char* const schema[] = {"CREATE TABLE t(x TEXT)"};
  Database writer(scratch.path() / "db"), reader(scratch.path() / "db");
  writer.migrate(schema);
  {
    Statement mode = reader.prepare("PRAGMA journal_mode");
    REQUIRE(mode.step());
    CHECK(mode.text(0) == "wal");
  }
  writer.execute("BEGIN EXCLUSIVE; INSERT INTO t VALUES('new')");
  const auto count = [&] {
    Statement query = reader.prepare("SELECT count(*) FROM t");
    REQUIRE(query.step());
    return query.number(0);
  };
  const auto began = std::chrono::steady_clock::now();
  CHECK(count() == 0);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
  writer.execute("COMMIT");
  CHECK(count() == 1);
}

TEST_CASE("a database is migrated once and a newer one is refused", "[base][sqlite]") {
  TempDirectory scratch(std::filesystem::temp_directory_path());
  const char* const one[] = {"CREATE TABLE t(x TEXT)"};
  const char* const two[] = {"CREATE TABLE t(x TEXT)", "INSERT INTO t VALUES('new')"};
  {
    Database database(scratch.path() / "db");
    database.migrate(one);
    database.migrate(two);
    Statement query = database.prepare("SELECT x FROM t");
    REQUIRE(query.step());
    CHECK(query.text(0) == "new");
    CHECK_FALSE(query.step());
  }
  Database database(scratch.path() / "db");
  CHECK_THROWS_AS(database.migrate(one), Error);
}

}  // namespace
}  // namespace dsec
