#include "cli/sandbox_flags.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/files.h"

using namespace dsec;
using namespace dsec::cli;

namespace {

using Words = std::vector<std::string>;

std::string fault_of_bind(const std::string& text) {
  try {
    parse_bind(text);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("a bind has a host path, an inner path and perhaps a mode", "[cli][flags]") {
  CHECK(parse_bind("/tmp:/mnt") == BindMount{"/tmp", "/mnt", false});
  CHECK(parse_bind("/tmp:/mnt:ro") == BindMount{"/tmp", "/mnt", true});
  CHECK(parse_bind("/tmp:/mnt:rw") == BindMount{"/tmp", "/mnt", false});
}

TEST_CASE("a relative host path is taken from here, and its links are resolved", "[cli][flags]") {
  const TempDirectory work(std::filesystem::temp_directory_path());
  std::filesystem::create_directory(work.path() / "real:dir");
  std::filesystem::create_symlink("real:dir", work.path() / "link");
  CHECK(parse_bind(work.path().native() + "/link:/mnt").source ==
        std::filesystem::canonical(work.path()).native() + "/real:dir");
  CHECK(parse_bind(work.path().native() + "/real:dir:/mnt:ro").read_only);
  CHECK(parse_bind(".:/mnt").source == std::filesystem::current_path().native());
}

TEST_CASE("a bind that is none says what is wrong", "[cli][flags]") {
  CHECK(fault_of_bind("/tmp").find("it needs two paths") != std::string::npos);
  CHECK(fault_of_bind(":/x").find("it needs two paths") != std::string::npos);
  CHECK(fault_of_bind("/tmp:x").find("must be absolute") != std::string::npos);
  CHECK(fault_of_bind("/nowhere-at-all:/x").find("ENOENT") != std::string::npos);
}

TEST_CASE("a variable without a value is taken from here or left out", "[cli][flags]") {
  ::setenv("DSEC_TEST_VARIABLE", "here", 1);
  Words env;
  add_variable(env, "A=1=2");
  add_variable(env, "DSEC_TEST_VARIABLE");
  add_variable(env, "DSEC_TEST_NOT_SET");
  add_variable(env, "A=3");
  CHECK(env == Words{"A=3", "DSEC_TEST_VARIABLE=here"});
  CHECK_THROWS_AS(add_variable(env, "=x"), Error);
}

TEST_CASE("a file of variables has comments, blank lines and CRLF", "[cli][flags]") {
  const TempDirectory work(std::filesystem::temp_directory_path());
  const std::string path = work.path() / "vars";
  write_file_atomic(path, "# a comment\r\n\r\nA=x y\r\n  B=#no comment\nC=");
  Words env;
  add_variables_of_file(env, path);
  CHECK(env == Words{"A=x y", "B=#no comment", "C="});
  write_file_atomic(path, "A=1\nbad name=2\n");
  CHECK_THROWS_WITH(add_variables_of_file(env, path), Catch::Contains("vars:2"));
}

TEST_CASE("labels have keys and perhaps values", "[cli][flags]") {
  CHECK(parse_labels({"a=1=2", "b"}) == std::map<std::string, std::string>{{"a", "1=2"}, {"b", ""}});
  CHECK_THROWS_AS(parse_labels({"=x"}), Error);
}
