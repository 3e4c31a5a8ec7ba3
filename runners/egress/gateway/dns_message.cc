#include "runners/egress/gateway/dns_message.h"

#include <algorithm>
#include <array>

#include "core/model/network_policy.h"

namespace dsec::egress {
namespace {

constexpr std::size_t kHeader = 12;
constexpr std::uint16_t kInternet = 1;
constexpr int kMostAliases = 16;

std::uint16_t u16(std::string_view message, std::size_t at) {
  return static_cast<std::uint16_t>(static_cast<std::uint8_t>(message[at]) << 8 |
                                    static_cast<std::uint8_t>(message[at + 1]));
}
std::uint32_t u32(std::string_view message, std::size_t at) {
  return static_cast<std::uint32_t>(u16(message, at)) << 16 | u16(message, at + 2);
}
void put16(std::string& out, unsigned value) {
  out += static_cast<char>(value >> 8);
  out += static_cast<char>(value);
}

// Reads a name at `at` and moves past it; false when it is no name.
bool read_name(std::string_view message, std::size_t& at, std::string& name) {
  name.clear();
  std::size_t from = at, lowest = at;
  bool jumped = false;
  for (;;) {
    if (from >= message.size()) return false;
    const auto length = static_cast<std::uint8_t>(message[from]);
    if ((length & 0xc0) == 0xc0) {
      if (from + 2 > message.size()) return false;
      if (!jumped) at = from + 2;
      jumped = true;
      const std::size_t target = u16(message, from) & 0x3fff;
      // Backwards only, so that it ends.
      if (target >= lowest) return false;
      from = lowest = target;
      continue;
    }
    if (length > 63 || from + 1 + length > message.size()) return false;
    if (length == 0) break;
    if (name.size() + length > 254) return false;
    if (!name.empty()) name += '.';
    for (const char c : message.substr(from + 1, length)) {
      const char small = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      const bool usual =
          (small >= 'a' && small <= 'z') || (small >= '0' && small <= '9') || small == '-' || small == '_';
      name += usual ? small : '?';
    }
    from += 1u + length;
  }
  if (!jumped) at = from + 1;
  return true;
}

struct Record {
  std::string owner;
  std::uint16_t type = 0, kind = 0;
  std::uint32_t ttl = 0;
  std::size_t data = 0, size = 0;
};

bool read_record(std::string_view message, std::size_t& at, Record& record) {
  if (!read_name(message, at, record.owner) || message.size() - at < 10) return false;
  record.type = u16(message, at);
  record.kind = u16(message, at + 2);
  record.ttl = u32(message, at + 4);
  record.size = u16(message, at + 8);
  record.data = at + 10;
  if (message.size() - record.data < record.size) return false;
  at = record.data + record.size;
  return true;
}

}  // namespace

std::optional<DnsQuestion> parse_dns_query(std::string_view message) {
  if (message.size() < kHeader) return std::nullopt;
  const std::uint16_t flags = u16(message, 2);
  // A query (QR 0) of the standard kind (opcode 0), with one question.
  if ((flags & 0xf800) != 0 || u16(message, 4) != 1) return std::nullopt;
  DnsQuestion question;
  question.id = u16(message, 0);
  question.recursion_desired = (flags & 0x0100) != 0;
  std::size_t at = kHeader;
  if (!read_name(message, at, question.name) || message.size() - at < 4) return std::nullopt;
  question.type = u16(message, at);
  if (u16(message, at + 2) != kInternet) return std::nullopt;
  question.raw = message.substr(kHeader, at + 4 - kHeader);
  return question;
}

std::string dns_answer(const DnsQuestion& question, DnsCode code, const std::vector<IpAddress>& addresses,
                       std::uint32_t ttl_seconds) {
  std::string out;
  put16(out, question.id);
  put16(out, 0x8080u | (question.recursion_desired ? 0x0100u : 0u) | static_cast<unsigned>(code));
  put16(out, 1);
  put16(out, static_cast<unsigned>(addresses.size()));
  put16(out, 0);
  put16(out, 0);
  out += question.raw;
  for (const IpAddress& address : addresses) {
    put16(out, 0xc000u | kHeader);
    put16(out, question.type);
    put16(out, kInternet);
    put16(out, ttl_seconds >> 16);
    put16(out, ttl_seconds & 0xffff);
    const std::size_t skipped = question.type == kDnsA ? 12 : 0;
    put16(out, static_cast<unsigned>(16 - skipped));
    out.append(reinterpret_cast<const char*>(address.bytes.data()) + skipped, 16 - skipped);
  }
  return out;
}

std::string dns_query(std::uint16_t id, std::string_view name, std::uint16_t type) {
  std::string out;
  put16(out, id);
  put16(out, 0x0100);
  put16(out, 1);
  out.append(6, '\0');
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    out += static_cast<char>(end - at);
    out += name.substr(at, end - at);
    at = end + 1;
  }
  out += '\0';
  put16(out, type);
  put16(out, kInternet);
  return out;
}

std::optional<DnsReply> parse_dns_reply(std::string_view message, std::uint16_t id, std::string_view name,
                                        std::uint16_t type) {
  if (message.size() < kHeader || u16(message, 0) != id) return std::nullopt;
  const std::uint16_t flags = u16(message, 2);
  if ((flags & 0xf800) != 0x8000 || u16(message, 4) != 1) return std::nullopt;
  std::string owner;
  std::size_t at = kHeader;
  if (!read_name(message, at, owner) || message.size() - at < 4) return std::nullopt;
  if (owner != name || u16(message, at) != type || u16(message, at + 2) != kInternet) return std::nullopt;
  at += 4;
  DnsReply reply;
  reply.code = static_cast<DnsCode>(flags & 0xf);
  reply.truncated = (flags & 0x0200) != 0;
  std::vector<Record> records;
  for (unsigned left = u16(message, 6); left > 0; --left) {
    Record record;
    if (!read_record(message, at, record)) {
      // What was cut off is asked for again over TCP.
      if (reply.truncated) break;
      return std::nullopt;
    }
    records.push_back(std::move(record));
  }
  // Aliases may stand in any order, but the chain begins at the question.
  std::string wanted(name);
  std::uint32_t ttl = 0xffffffff;
  for (int alias = 0; alias < kMostAliases; ++alias) {
    const auto found = std::find_if(records.begin(), records.end(), [&](const Record& record) {
      return record.type == kDnsCname && record.kind == kInternet && record.owner == wanted;
    });
    if (found == records.end()) break;
    std::size_t target = found->data;
    if (!read_name(message, target, wanted)) return std::nullopt;
    ttl = std::min(ttl, found->ttl);
  }
  const std::size_t size = type == kDnsA ? 4 : 16;
  for (const Record& record : records) {
    if (record.type != type || record.kind != kInternet || record.owner != wanted || record.size != size) continue;
    reply.addresses.push_back(IpAddress::from_bytes(message.data() + record.data, size));
    ttl = std::min(ttl, record.ttl);
  }
  reply.ttl_seconds = reply.addresses.empty() ? 0 : ttl;
  return reply;
}

}  // namespace dsec::egress
