#include "core/engine/normalise.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

TEST_CASE("what differs between two runs is the same afterwards", "[replay]") {
  const Normaliser normaliser;
  const std::pair<const char*, const char*> pairs[] = {
      {"at 2026-11-29T17:14:23.123Z ok", "at 2025-01-02 03:04:05+01:00 ok"},
      {"Sun Nov 29 17:14:23 UTC 2026", "Mon Jan  5 01:02:03 UTC 2026"},
      {"Sun, 29 Nov 2026 17:14:23 GMT", "Mon, 05 Jan 2026 01:02:03 GMT"},
      {"-rw-r--r-- 1 root root 5 Nov 29 17:14 a", "-rw-r--r-- 1 root root 5 Jan  5 01:02 a"},
      {"3 passed in 0.12s", "3 passed in 1.4s"},
      {"real\t0m0.012s", "real\t1m3.100s"},
      {"took 15 ms", "took 1203 ms"},
      {"<object at 0x7f8a12345670>", "<object at 0x55d0aabbccdd>"},
      {"wrote /tmp/tmp.aBc123/x", "wrote /tmp/tmp.ZZZ999/x"},
      {"pid 12", "pid 4711"},
      {"sshd[123]: x", "sshd[99999]: x"},
  };
  for (const auto& [left, right] : pairs) {
    INFO(left);
    CHECK(normaliser.apply(left) == normaliser.apply(right));
  }
}

TEST_CASE("what is a result is not taken for a property of the run", "[replay]") {
  const Normaliser normaliser;
  const std::pair<const char*, const char*> pairs[] = {
      {"3 passed", "4 passed"},
      {"exit 12", "exit 13"},
      {"x = 0x1f", "x = 0x2f"},
      {"[1, 2]", "[1, 3]"},
      {"/home/a", "/home/b"},
      {"version 1.2.3", "version 1.2.4"},
      {"line 10: error", "line 11: error"},
      {"a\nb\n", "a\nb"},
      {"items", "item"},
  };
  for (const auto& [left, right] : pairs) {
    INFO(left);
    CHECK(normaliser.apply(left) != normaliser.apply(right));
  }
}

TEST_CASE("bytes of every kind come out as they went in", "[replay]") {
  const Normaliser normaliser;
  const std::string bytes("a\0b\xff\n\n\x01 no newline", 19);
  CHECK(normaliser.apply(bytes) == bytes);
  CHECK(normaliser.apply("").empty());
  CHECK(normaliser.apply(std::string(3'000'000, 'x')).size() == 3'000'000);
}

TEST_CASE("rules of one's own come first, and a file of them tells its wrong lines", "[replay]") {
  Normaliser normaliser;
  normaliser.add_file("# rules\nseed=[0-9]+\tseed=N\n\nport [0-9]{4,5}\tport\n", "rules");
  normaliser.add_literal("abc", "<name>");
  CHECK(normaliser.apply("seed=17 port 8080 abcabc") == "seed=N port <name><name>");
  const auto told = [&](const char* text) {
    try {
      normaliser.add_file(text, "rules");
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  CHECK(told("a\tb\nno tab here\n").find("rules:2") != std::string::npos);
  CHECK(told("a[\tb\n").find("rules:1") != std::string::npos);
  CHECK(told("x*\ty\n").find("everywhere") != std::string::npos);
}

}  // namespace
}  // namespace dsec::engine
