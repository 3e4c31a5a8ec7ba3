#include "cli/output.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "cli/exec_json.h"
#include "cli/report.h"
#include "core/base/json.h"
#include "core/engine/engine.h"

#include <nlohmann/json.hpp>

using namespace dsec;
using namespace dsec::cli;

TEST_CASE("columns are as wide as their widest cell and lines end with their last", "[cli][output]") {
  Table table({"NAME", "SIZE"});
  table.row({"long name", "1"});
  table.row({"ü", ""});
  CHECK(table.str() == "NAME       SIZE\nlong name  1\nü\n");
}

TEST_CASE("an error is told as attempt, causes and ways out", "[cli][report]") {
  std::ostringstream text, json;
  const Error error = failure("no space").context("cannot import").hint("dsec gc");
  report(error, Format::Text, text);
  CHECK(text.str() == "error: cannot import\n  because: no space\n  try: dsec gc\n");
  report(error, Format::Json, json);
  CHECK(Json::parse(json.str()) ==
        Json{{"error", {{"kind", "failed"}, {"chain", {"cannot import", "no space"}}, {"try", {"dsec gc"}}}}});
}

TEST_CASE("dsec's own failure is 125 where the exit code is a command's", "[cli][report]") {
  CHECK(exit_code(ErrorKind::Usage, false) == 2);
  CHECK(exit_code(ErrorKind::Failed, false) == 1);
  CHECK(exit_code(ErrorKind::Usage, true) == 125);
  CHECK(exit_code(ErrorKind::Failed, true) == 125);
}

TEST_CASE("bytes that are no text come as base64", "[cli][json]") {
  CHECK(bytes_to_json("tëxt") == Json{{"data", "tëxt"}});
  CHECK(bytes_to_json("\xff") == Json{{"base64", "/w=="}});
  CHECK(bytes_to_json("\xff\xfe") == Json{{"base64", "//4="}});
  CHECK(bytes_to_json(std::string("\xff\0\x01", 3)) == Json{{"base64", "/wAB"}});
  CHECK(bytes_to_json(std::string("\xff\0\x01z", 4)) == Json{{"base64", "/wABeg=="}});
}

TEST_CASE("what would move a terminal's cursor is escaped", "[cli][output]") {
  CHECK(printable("a\x1b[31m\n") == "a\\x1b[31m\\x0a");
}
