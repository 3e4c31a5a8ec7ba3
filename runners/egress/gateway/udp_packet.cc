#include "runners/egress/gateway/udp_packet.h"

#include <netinet/in.h>

namespace dsec::egress {
namespace {

constexpr std::size_t kUdpHeader = 8, kIp4Header = 20, kLongest = 65535;
constexpr std::uint8_t kTtl = 64;

void put16(std::string& out, std::size_t value) {
  out += static_cast<char>(value >> 8);
  out += static_cast<char>(value);
}

void put_address(std::string& out, const IpAddress& address) {
  const std::size_t skipped = address.is_v4() ? 12 : 0;
  out.append(reinterpret_cast<const char*>(address.bytes.data()) + skipped, 16 - skipped);
}

// The ones' complement sum of RFC 1071.
std::uint16_t checksum(std::string_view bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += static_cast<std::uint64_t>(static_cast<std::uint8_t>(bytes[i])) << (i % 2 ? 0 : 8);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

void set16(std::string& out, std::size_t at, std::uint16_t value) {
  out[at] = static_cast<char>(value >> 8);
  out[at + 1] = static_cast<char>(value);
}

}  // namespace

std::string udp_packet(const Endpoint& from, const Endpoint& to, std::string_view data) {
  const bool four = from.address.is_v4();
  data = data.substr(0, kLongest - kUdpHeader - (four ? kIp4Header : 0));
  const std::size_t length = kUdpHeader + data.size();
  std::string udp;
  put16(udp, from.port);
  put16(udp, to.port);
  put16(udp, length);
  put16(udp, 0);
  udp += data;
  std::string pseudo;
  put_address(pseudo, from.address);
  put_address(pseudo, to.address);
  put16(pseudo, length >> 16);
  put16(pseudo, length);
  put16(pseudo, 0);
  put16(pseudo, IPPROTO_UDP);
  // Zero would say that there is none.
  const std::uint16_t sum = checksum(pseudo + udp);
  set16(udp, 6, sum ? sum : 0xffff);

  std::string packet;
  if (four) {
    packet += '\x45';
    packet += '\0';
    put16(packet, kIp4Header + length);
    put16(packet, 0);
    put16(packet, 0x4000);  // not to be cut into pieces
    packet += static_cast<char>(kTtl);
    packet += static_cast<char>(IPPROTO_UDP);
    put16(packet, 0);
    put_address(packet, from.address);
    put_address(packet, to.address);
    set16(packet, 10, checksum(packet));
  } else {
    packet += '\x60';
    packet.append(3, '\0');
    put16(packet, length);
    packet += static_cast<char>(IPPROTO_UDP);
    packet += static_cast<char>(kTtl);
    put_address(packet, from.address);
    put_address(packet, to.address);
  }
  return packet + udp;
}

}  // namespace dsec::egress
