#include "core/engine/trajectory_report.h"

#include <catch2/catch.hpp>

namespace dsec::engine {

TEST_CASE("nothing of a text is HTML, and all of it shows", "[engine][report]") {
  CHECK(html_text("<script>alert('\"&')</script>") == "&lt;script&gt;alert(&#39;&quot;&amp;&#39;)&lt;/script&gt;");
  CHECK(html_text("a\tb\nc\r\nd\re") == "a\tb\nc\nd\\x0de");
  CHECK(html_text(std::string("\0\x1b[2J\x7f", 6)) == "\\x00\\x1b[2J\\x7f");
  CHECK(html_text("\x1b[1;31mred\x1b[0m") == "red");
  CHECK(html_text("gr\xc3\xbc\xc3\x9f\xe2\x82\xac\xf0\x9f\x98\x80") ==
        "gr\xc3\xbc\xc3\x9f\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(html_text("\xff\xc3(\xf0\x9f") == "\\xff\\xc3(\\xf0\\x9f");
  CHECK(html_text("\xe2\x80\xae") == "\\xe2\\x80\\xae");
}

}  // namespace dsec::engine
