#include "core/engine/screen.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

using Kind = ScreenInput::Kind;

TEST_CASE("what is done at a screen survives its record", "[engine][screen]") {
  for (const ScreenInput& input : {ScreenInput{Kind::Type, "text\n", {}, {}}, ScreenInput{Kind::Key, "ctrl+a", {}, {}},
                                   ScreenInput{Kind::Move, "", ScreenPoint{3, 4}, {}},
                                   ScreenInput{Kind::Click, "", ScreenPoint{3, 4}, {}, "right", 2},
                                   ScreenInput{Kind::Scroll, "", ScreenPoint{3, 4}, {}, "left", 5, true},
                                   ScreenInput{Kind::Drag, "", ScreenPoint{3, 4}, ScreenPoint{5, 6}, "middle"}})
    CHECK(screen_input_from(to_json(input)) == input);
}

TEST_CASE("a record of a screen that makes no sense is refused", "[engine][screen]") {
  for (const char* wrong : {"{}", R"({"action":"jump"})", R"({"action":"move","at":[1]})",
                            R"({"action":"move","at":[-1,2]})", R"({"action":"move","at":"1,2"})"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(screen_input_from(parse_json(wrong, "it")), Error);
  }
}

}  // namespace
}  // namespace dsec::engine
