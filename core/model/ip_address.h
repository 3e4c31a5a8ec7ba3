#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsec {

/// An IPv4 or IPv6 address. An IPv4 address and its IPv4-mapped IPv6 form are the same value.
struct IpAddress {
  std::array<std::uint8_t, 16> bytes{};  ///< in network order; IPv4 as ::ffff:a.b.c.d

  static std::optional<IpAddress> parse(std::string_view text);
  static IpAddress v4(std::uint32_t host_order) noexcept;
  /// 4 or 16 bytes in network order.
  static IpAddress from_bytes(const void* data, std::size_t size) noexcept;
  bool is_v4() const noexcept;
  /// Host order; of an IPv4 address alone.
  std::uint32_t as_v4() const noexcept;
  std::string str() const;
  auto operator<=>(const IpAddress&) const = default;
};

/// A prefix: "10.0.0.0/8", "2001:db8::/32".
struct AddressRange {
  IpAddress base;
  unsigned prefix = 128;  ///< bits of the 128 of IpAddress: 96 more than an IPv4 prefix says

  /// An address alone is a range of one. Empty when it is none, also when bits beyond the prefix are set.
  static std::optional<AddressRange> parse(std::string_view text);
  bool contains(const IpAddress& address) const noexcept;
  bool within(const AddressRange& other) const noexcept { return prefix >= other.prefix && other.contains(base); }
  std::string str() const;
  bool operator==(const AddressRange&) const = default;
};

/// A range that no name of the internet may lead to.
struct SpecialRange {
  AddressRange range;
  const char* what;  ///< "private", "link-local", "loopback"
};
/// The special range an address lies in; null for one of the public internet.
const SpecialRange* special_range(const IpAddress& address);

}  // namespace dsec
