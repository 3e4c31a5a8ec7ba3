#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/ip_address.h"

namespace dsec::egress {

/// DNS messages (RFC 1035) as far as the gateway speaks them: one question, addresses and aliases. All bytes come from
/// a sandbox or from the network, so every length is checked and compressed names may only point backwards.

inline constexpr std::uint16_t kDnsA = 1, kDnsCname = 5, kDnsAaaa = 28;
enum class DnsCode : std::uint8_t { Ok = 0, FormatError = 1, ServerFailure = 2, NoName = 3, NotDone = 4, Refused = 5 };

struct DnsQuestion {
  std::uint16_t id = 0, type = 0;
  bool recursion_desired = true;
  std::string name;  ///< lower case without the final dot; a byte that no host name has makes it "?"
  std::string raw;   ///< name, type and class as they came: answers repeat them
};

/// Empty for what is no query that can be answered.
std::optional<DnsQuestion> parse_dns_query(std::string_view message);
/// The answer of a query; `addresses` of the question's type.
std::string dns_answer(const DnsQuestion& question, DnsCode code, const std::vector<IpAddress>& addresses,
                       std::uint32_t ttl_seconds);

/// A query for a normal host name.
std::string dns_query(std::uint16_t id, std::string_view name, std::uint16_t type);

struct DnsReply {
  DnsCode code = DnsCode::Ok;
  bool truncated = false;
  std::vector<IpAddress> addresses;  ///< of `name` or of what it is an alias of
  std::uint32_t ttl_seconds = 0;     ///< the least of the records used
};
/// Empty for what does not answer this very question.
std::optional<DnsReply> parse_dns_reply(std::string_view message, std::uint16_t id, std::string_view name,
                                        std::uint16_t type);

}  // namespace dsec::egress
