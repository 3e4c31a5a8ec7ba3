#include "core/remote/frame.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace dsec::remote {
namespace {

TEST_CASE("frames come out as they went in, however the bytes are cut", "[remote]") {
  std::string bytes;
  append_frame(bytes, FrameKind::Stdout, "out");
  append_frame(bytes, FrameKind::KeepAlive, "");
  append_frame(bytes, FrameKind::Stderr, std::string(70'000, '\0'));
  for (const std::size_t step : {std::size_t{1}, std::size_t{4}, std::size_t{6}, bytes.size()}) {
    FrameReader reader;
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      reader.add(std::string_view(bytes).substr(at, step));
      while (auto frame = reader.next()) frames.push_back(*std::move(frame));
    }
    REQUIRE(frames.size() == 3);
    CHECK((frames[0].kind == FrameKind::Stdout && frames[0].payload == "out"));
    CHECK((frames[1].kind == FrameKind::KeepAlive && frames[1].payload.empty()));
    CHECK((frames[2].kind == FrameKind::Stderr && frames[2].payload.size() == 70'000));
    CHECK(reader.empty());
  }
}

TEST_CASE("a frame that says it is longer than any is refused before it comes", "[remote]") {
  FrameReader reader(100);
  reader.add(std::string("\1\0\0\0\x65", 5));
  CHECK_THROWS_AS(reader.next(), Error);
}

TEST_CASE("an error crosses the wire whole", "[remote]") {
  const Error error =
      std::move(usage_error("no such thing").context("cannot do it")).hint("do another").hint("or none");
  const Error back = error_from_document(error_document(error).dump(), "otherwise");
  CHECK(back.kind() == ErrorKind::Usage);
  CHECK(std::vector<std::string>(back.chain().begin(), back.chain().end()) ==
        std::vector<std::string>{"cannot do it", "no such thing"});
  CHECK(std::vector<std::string>(back.hints().begin(), back.hints().end()) ==
        std::vector<std::string>{"do another", "or none"});
  for (const char* body : {"", "{", "[]", "{}", "{\"error\": 7}"})
    CHECK(error_from_document(body, "otherwise").message() == "otherwise");
}

TEST_CASE("a result crosses the wire whole", "[remote]") {
  ExecResult result;
  result.cause = ExecResult::Cause::NotFound;
  result.detail = "No such file or directory (ENOENT)";
  result.duration = std::chrono::microseconds(1234);
  result.stdout_bytes = 5;
  const ExecResult back = exec_result_from_wire(parse_json(to_wire(result).dump(), "wire"));
  CHECK(back.cause == result.cause);
  CHECK(back.detail == result.detail);
  CHECK(back.duration == result.duration);
  CHECK(back.stdout_bytes == 5);
}

}  // namespace
}  // namespace dsec::remote
