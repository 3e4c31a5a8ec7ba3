#include "core/engine/judge.h"

#include <catch2/catch.hpp>

namespace dsec::engine {
namespace {

using How = Comparison::How;

std::string difference(How how, std::string_view expected, std::string_view actual) {
  return first_difference({.how = how}, expected, actual).value_or("");
}

TEST_CASE("exact comparison tells the first byte that differs", "[judge]") {
  CHECK(difference(How::Exact, "1 2\n", "1 2\n").empty());
  CHECK(difference(How::Exact, "1 2\n", "1 3\n") == "line 1, byte 3: expected '2', found '3'");
  CHECK(difference(How::Exact, "a\nb\n", "a\nb") == "line 2, byte 4: the output ends too early");
  CHECK(difference(How::Exact, "a\n", "a\nb") == "line 2, byte 3: the end was expected");
  CHECK(difference(How::Exact, "a\n", "a \n") != "");
}

TEST_CASE("tokens are compared whatever the white space between them", "[judge]") {
  CHECK(difference(How::Tokens, "1 2\n3", "1\n2 3\r\n\n").empty());
  CHECK(difference(How::Tokens, "", " \n").empty());
  CHECK(difference(How::Tokens, "1 2\n3", "1 2\n4") == "line 2, word 1: expected '3', found '4'");
  CHECK(difference(How::Tokens, "1 2", "1") == "line 1, word 2: expected '2', found the end");
  CHECK(difference(How::Tokens, "1", "1 2") == "line 1, word 2: the end was expected, found '2'");
  CHECK(difference(How::Tokens, "1.0", "1.00") != "");
}

TEST_CASE("floats may differ by the tolerance, absolute or relative", "[judge]") {
  CHECK(difference(How::Floats, "1.0 x 1e9", "1.00 x 1000000100").empty());
  CHECK(difference(How::Floats, "0", "0.0000005").empty());
  CHECK(difference(How::Floats, "0", "0.00001") != "");
  CHECK(difference(How::Floats, "nan inf -inf", "NaN Infinity -inf").empty());
  CHECK(difference(How::Floats, "inf", "-inf") != "");
  CHECK(difference(How::Floats, "+1", "1").empty());
  CHECK(difference(How::Floats, "yes", "no") != "");
  CHECK(difference(How::Floats, "1", "1x") != "");
}

TEST_CASE("long and binary words are shown in one line", "[judge]") {
  const std::string line = difference(How::Tokens, std::string(1000, 'a'), std::string("\x01\xff", 2));
  CHECK(line.size() < 200);
  CHECK(line.find('\x01') == std::string::npos);
}

}  // namespace
}  // namespace dsec::engine
