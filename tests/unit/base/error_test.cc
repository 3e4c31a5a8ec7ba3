#include "core/base/error.h"

#include <catch2/catch.hpp>
#include <cerrno>

namespace dsec {
namespace {

TEST_CASE("an error keeps the attempt outermost and the cause last", "[base][error]") {
  try {
    attempt("cannot start", [] { attempt("cannot open the box", [] { throw system_error("open 'x'", ENOENT); }); });
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.message() == "cannot start: cannot open the box: open 'x': No such file or directory (ENOENT)");
    CHECK(error.kind() == ErrorKind::Failed);
  }
}

TEST_CASE("attempt passes on what the action returns", "[base][error]") {
  CHECK(attempt("x", [] { return 7; }) == 7);
}

TEST_CASE("bytes from outside are made visible in a message", "[base][error]") {
  CHECK(quote("a\n\x1b[31m") == "'a\\x0a\\x1b[31m'");
  CHECK(quote("é") == "'é'");
  CHECK(quote("\xff\xc3") == "'\\xff\\xc3'");
  CHECK(quote("\xe0\x80\x80") == "'\\xe0\\x80\\x80'");
}

TEST_CASE("near names are suggested, far ones are not", "[base][error]") {
  const std::vector<std::string> names = {"base/debian", "base/python", "toolkit/x"};
  CHECK(nearest_names("base/debain", names) == std::vector<std::string>{"base/debian"});
  CHECK(nearest_names("zzz", names).empty());
}

}  // namespace
}  // namespace dsec
