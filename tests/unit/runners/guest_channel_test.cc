#include "runners/protocol/guest_channel.h"

#include <catch2/catch.hpp>
#include <string>

namespace channel = dsec::runners::channel;
using channel::ChannelHeader, channel::Parsed, channel::Type;

namespace {

std::string bytes_of(const ChannelHeader& header, const std::string& content = "") {
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + content;
}

Parsed parse(const std::string& bytes) {
  ChannelHeader header;
  return channel::parse_frame(bytes.data(), bytes.size(), header);
}

}  // namespace

TEST_CASE("a frame is taken when all of it is there", "[runners][vm]") {
  const std::string whole = bytes_of({4, Type::Data, 0, 7}, "four");
  for (std::size_t size = 0; size < whole.size(); ++size) CHECK(parse(whole.substr(0, size)) == Parsed::More);
  CHECK(parse(whole) == Parsed::Frame);
  CHECK(parse(whole + "and more") == Parsed::Frame);
}

TEST_CASE("what cannot begin a frame is known before it has all come", "[runners][vm]") {
  CHECK(parse(bytes_of({0, Type::Data, 1, 7})) == Parsed::Garbage);
  CHECK(parse(bytes_of({0, static_cast<Type>(99), 0, 7})) == Parsed::Garbage);
  CHECK(parse(bytes_of({0, static_cast<Type>(0), 0, 0})) == Parsed::Garbage);
  CHECK(parse(bytes_of({0, Type::Statistics, 0, 7})) == Parsed::Garbage);
  CHECK(parse(bytes_of({0, Type::Eof, 0, 0})) == Parsed::Garbage);
  CHECK(parse(bytes_of({channel::kMaxData + 1, Type::Data, 0, 7})) == Parsed::Garbage);
  CHECK(parse(bytes_of({channel::kMaxFrame + 1, Type::Configure, 0, 0})) == Parsed::Garbage);
  CHECK(parse("garbage! garbage!") == Parsed::Garbage);
}
