#include "runners/egress/gateway/udp_packet.h"

#include <catch2/catch.hpp>

namespace dsec::egress {
namespace {

// Over what carries its own checksum the sum is all ones.
std::uint32_t sum(std::string_view bytes) {
  std::uint32_t total = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    total += static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (i % 2 ? 0 : 8);
  while (total >> 16) total = (total & 0xffff) + (total >> 16);
  return total;
}

TEST_CASE("packets carry checksums that the kernel accepts", "[egress][udp]") {
  for (const std::string data : {"", "x", "even", "odd number", "\xff\xff\xff"}) {
    const std::string four =
        udp_packet({*IpAddress::parse("9.9.9.9"), 53}, {*IpAddress::parse("192.0.2.2"), 40000}, data);
    REQUIRE(four.size() == 28 + data.size());
    CHECK(sum(std::string_view(four).substr(0, 20)) == 0xffff);
    const std::string length{'\0', '\x11', static_cast<char>((8 + data.size()) >> 8),
                             static_cast<char>(8 + data.size())};
    CHECK(sum(four.substr(12, 8) + length + four.substr(20)) == 0xffff);
    const std::string six =
        udp_packet({*IpAddress::parse("2001:db8::1"), 53}, {*IpAddress::parse("2001:db8::2"), 40000}, data);
    REQUIRE(six.size() == 48 + data.size());
    CHECK(sum(six.substr(8, 32) + length + six.substr(40)) == 0xffff);
  }
}

}  // namespace
}  // namespace dsec::egress
