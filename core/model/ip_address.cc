#include "core/model/ip_address.h"

#include <arpa/inet.h>

#include <charconv>
#include <cstring>
#include <vector>

namespace dsec {
namespace {

constexpr unsigned kMappedBits = 96;

struct Written {
  const char *range, *what;
};

// IANA's registries of special-purpose addresses, and multicast. IPv6 beyond 2000::/3 is not assigned and comes last.
constexpr Written kSpecial[] = {
    {"0.0.0.0/8", "this network"},
    {"10.0.0.0/8", "private"},
    {"100.64.0.0/10", "shared by carriers"},
    {"127.0.0.0/8", "loopback"},
    {"168.63.129.16/32", "where a cloud keeps its metadata"},
    {"169.254.0.0/16", "link-local, where clouds keep their metadata"},
    {"172.16.0.0/12", "private"},
    {"192.0.0.0/24", "for protocols"},
    {"192.0.2.0/24", "for documentation"},
    {"192.88.99.0/24", "for 6to4 relays"},
    {"192.168.0.0/16", "private"},
    {"198.18.0.0/15", "for benchmarks"},
    {"198.51.100.0/24", "for documentation"},
    {"203.0.113.0/24", "for documentation"},
    {"224.0.0.0/4", "multicast"},
    {"240.0.0.0/4", "reserved"},
    {"::/128", "unspecified"},
    {"::1/128", "loopback"},
    {"64:ff9b::/96", "translated to IPv4"},
    {"64:ff9b:1::/48", "translated to IPv4"},
    {"2001::/23", "for protocols"},
    {"2001:db8::/32", "for documentation"},
    {"2002::/16", "for 6to4"},
    {"3fff::/20", "for documentation"},
    {"fc00::/7", "private"},
    {"fe80::/10", "link-local"},
    {"fec0::/10", "site-local"},
    {"ff00::/8", "multicast"},
    {"::/3", "not assigned"},
    {"4000::/2", "not assigned"},
    {"8000::/1", "not assigned"},
};

std::vector<SpecialRange> read_special() {
  std::vector<SpecialRange> ranges;
  for (const Written& written : kSpecial) ranges.push_back({*AddressRange::parse(written.range), written.what});
  return ranges;
}

}  // namespace

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  const std::string copy(text);
  if (copy.find('\0') != std::string::npos) return std::nullopt;
  std::uint8_t raw[16];
  if (::inet_pton(AF_INET, copy.c_str(), raw) == 1) return from_bytes(raw, 4);
  if (::inet_pton(AF_INET6, copy.c_str(), raw) == 1) return from_bytes(raw, 16);
  return std::nullopt;
}

IpAddress IpAddress::v4(std::uint32_t host_order) noexcept {
  const std::uint32_t raw = htonl(host_order);
  return from_bytes(&raw, 4);
}

IpAddress IpAddress::from_bytes(const void* data, std::size_t size) noexcept {
  IpAddress address;
  if (size == 4) {
    address.bytes[10] = address.bytes[11] = 0xff;
    std::memcpy(address.bytes.data() + 12, data, 4);
  } else {
    std::memcpy(address.bytes.data(), data, 16);
  }
  return address;
}

bool IpAddress::is_v4() const noexcept {
  static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(bytes.data(), kMapped, sizeof kMapped) == 0;
}

std::uint32_t IpAddress::as_v4() const noexcept {
  std::uint32_t raw = 0;
  std::memcpy(&raw, bytes.data() + 12, 4);
  return ntohl(raw);
}

std::string IpAddress::str() const {
  char text[INET6_ADDRSTRLEN];
  const bool four = is_v4();
  return ::inet_ntop(four ? AF_INET : AF_INET6, bytes.data() + (four ? 12 : 0), text, sizeof text);
}

std::optional<AddressRange> AddressRange::parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto base = IpAddress::parse(text.substr(0, slash));
  if (!base) return std::nullopt;
  // "::ffff:0:0/90" would be neither: what is written as IPv6 and means IPv4 has to name all of the mapped prefix.
  const bool four = base->is_v4();
  const unsigned most = four && text.find(':') == std::string_view::npos ? 32 : 128;
  AddressRange range{*base, 128};
  if (slash != std::string_view::npos) {
    unsigned bits = 0;
    const std::string_view digits = text.substr(slash + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (error != std::errc() || end != digits.data() + digits.size() || digits.empty() || bits > most)
      return std::nullopt;
    range.prefix = most == 32 ? bits + kMappedBits : bits;
    if (four && range.prefix < kMappedBits) return std::nullopt;
  }
  for (unsigned bit = range.prefix; bit < 128; ++bit)
    if (range.base.bytes[bit / 8] & (0x80u >> bit % 8)) return std::nullopt;
  return range;
}

bool AddressRange::contains(const IpAddress& address) const noexcept {
  // "::/0" means IPv6: that an IPv4 address has an IPv6 form here is our own affair.
  if (base.is_v4() != address.is_v4()) return false;
  const unsigned whole = prefix / 8, rest = prefix % 8;
  if (std::memcmp(base.bytes.data(), address.bytes.data(), whole) != 0) return false;
  if (rest == 0) return true;
  const auto mask = static_cast<std::uint8_t>(0xff00u >> rest);
  return (base.bytes[whole] & mask) == (address.bytes[whole] & mask);
}

std::string AddressRange::str() const {
  if (prefix == 128) return base.str();
  return base.str() + "/" + std::to_string(base.is_v4() ? prefix - kMappedBits : prefix);
}

const SpecialRange* special_range(const IpAddress& address) {
  static const std::vector<SpecialRange> ranges = read_special();
  for (const SpecialRange& special : ranges)
    if (special.range.contains(address)) return &special;
  return nullptr;
}

}  // namespace dsec
