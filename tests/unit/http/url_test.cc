#include "core/http/url.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/http/shown_url.h"

namespace dsec::http {
namespace {

TEST_CASE("a URL comes apart and together again", "[http][url]") {
  const Url url = Url::parse("https://Registry.Example:5000/v2/a%20b/?x=y");
  CHECK(url.host == "registry.example");
  CHECK(url.port == 5000);
  CHECK(url.target == "/v2/a%20b/?x=y");
  CHECK(url.authority() == "registry.example:5000");
  CHECK(url.str() == "https://registry.example:5000/v2/a%20b/?x=y");
  CHECK(url.shown() == "https://registry.example:5000/v2/a%20b/?…");
  CHECK(Url::parse("http://h").str() == "http://h/");
  CHECK(Url::parse("https://h:443/").authority() == "h");
  CHECK(Url::parse("http://[::1]:80/x").authority() == "[::1]");
}

TEST_CASE("what is no URL that may be asked is refused", "[http][url]") {
  for (const char* text : {"", "host/x", "host:5000/x", "ftp://h/x", "file:///etc/passwd", "http://", "http://u:p@h/",
                           "http://h/a b", "http://h/\n", "http://h:99999/"})
    CHECK_THROWS_AS(Url::parse(text), Error);
}

TEST_CASE("what may open a door is not shown", "[http][url]") {
  const auto [text, shown] = GENERATE(table<std::string, std::string>({
      {"https://h/a?token=x", "https://h/a?…"},
      {"https://u:p@h/a@b", "https://…@h/a@b"},
      {"https://u:p?q@h/r.git#a:b", "https://…@h/r.git#a:b"},
      {"git@h:a/b.git", "git@h:a/b.git"},
      {"x?y", "x?…"},
      {"", ""},
  }));
  CHECK(shown_url(text) == shown);
  for (const char* wrong : {"https://user:secret@h/ a", "https://user:secret@h:99999/", "https://h/ a?secret"}) {
    try {
      Url::parse(wrong);
      FAIL("taken");
    } catch (const Error& error) {
      CHECK(error.message().find("secret") == std::string::npos);
    }
  }
}

TEST_CASE("a Location is taken relative to where it came from", "[http][url]") {
  const Url url = Url::parse("https://h:1/a/b?c");
  CHECK(url.resolve("/x?y=z").str() == "https://h:1/x?y=z");
  CHECK(url.resolve("d").str() == "https://h:1/a/d");
  CHECK(url.resolve("//other/d").str() == "https://other/d");
  CHECK(url.resolve("http://other/").scheme == "http");
  CHECK(url.with("digest", "sha256:a/b").str() == "https://h:1/a/b?c&digest=sha256%3Aa%2Fb");
  CHECK(Url::parse("https://h/u").with("a", "b").target == "/u?a=b");
}

TEST_CASE("the loopback is told from names that only look like it", "[http][url]") {
  for (const char* host : {"localhost", "x.localhost", "127.0.0.1", "127.255.1.2", "[::1]"})
    CHECK(Url::parse("http://" + std::string(host) + ":5000/").is_loopback());
  for (const char* host : {"localhost.example", "127.0.0.1.example", "128.0.0.1", "[::2]", "notlocalhost"})
    CHECK_FALSE(Url::parse("http://" + std::string(host) + "/").is_loopback());
}

}  // namespace
}  // namespace dsec::http
