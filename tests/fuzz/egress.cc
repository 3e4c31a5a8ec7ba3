// What sandboxes and servers send to the egress gateway: DNS messages, TLS hellos, HTTP requests and their bodies; and
// the rules of network policies.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/model/network_policy.h"
#include "runners/egress/gateway/dns_message.h"
#include "runners/egress/gateway/http_request.h"
#include "runners/egress/gateway/tls_hello.h"

using namespace dsec;
using namespace dsec::egress;

namespace {

void fuzz_dns(std::string_view bytes) {
  if (const auto question = parse_dns_query(bytes)) {
    const std::string answer = dns_answer(*question, DnsCode::Ok, {*IpAddress::parse("198.18.0.1")}, 60);
    if (answer.size() > 65535 || parse_dns_query(answer)) __builtin_trap();
  }
  const std::uint16_t id = bytes.size() < 2 ? 0
                                            : static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[0]) << 8 |
                                                                         static_cast<unsigned char>(bytes[1]));
  parse_dns_reply(bytes, id, "example.com", kDnsA);
  parse_dns_reply(bytes, id, "example.com", kDnsAaaa);
}

void fuzz_http(std::string_view bytes) {
  for (int requests = 0; requests < 100; ++requests) {
    const HttpHead head = parse_http_head(bytes);
    if (head.state != HttpHead::State::Done) return;
    if (head.size == 0 || head.size > bytes.size() || head.host.empty()) __builtin_trap();
    if (head.absolute) origin_form(head);
    bytes.remove_prefix(head.size);
    // In one piece and byte by byte it is the same body.
    HttpBody whole(head), pieces(head);
    const std::size_t used = whole.consume(bytes);
    std::size_t one = 0;
    while (one < bytes.size() && !pieces.done() && !pieces.bad()) one += pieces.consume(bytes.substr(one, 1));
    if (used != one || whole.done() != pieces.done() || whole.bad() != pieces.bad()) __builtin_trap();
    bytes.remove_prefix(used);
    if (!whole.done()) return;
  }
}

// What is HTTP to us must be HTTP to who looks for it in other protocols, however it is cut.
void fuzz_first_line(std::string_view bytes) {
  FirstLine whole, pieces;
  const bool named = whole.names_http(bytes);
  bool named_in_pieces = false;
  for (std::size_t at = 0; at < bytes.size() && !named_in_pieces; ++at)
    named_in_pieces = pieces.names_http(bytes.substr(at, 1));
  const bool read = parse_http_head(bytes).state == HttpHead::State::Done;
  if (named != named_in_pieces || (read && !named)) __builtin_trap();
}

void fuzz_tls(std::string_view bytes) {
  const TlsHello hello = parse_tls_hello(bytes);
  if (hello.server_name != normal_host_name(hello.server_name)) __builtin_trap();
  if (hello.state == TlsHello::State::NeedMore && bytes.size() > 2 * kLongestHello + 65536) __builtin_trap();
}

void fuzz_rule(std::string_view bytes) {
  try {
    const NetworkRule rule = NetworkRule::parse(bytes);
    if (NetworkRule::parse(rule.str()) != rule) __builtin_trap();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      fuzz_dns(bytes);
      break;
    case 1:
      fuzz_http(bytes);
      break;
    case 2:
      fuzz_tls(bytes);
      break;
    case 3:
      fuzz_first_line(bytes);
      break;
    default:
      fuzz_rule(bytes);
  }
  return 0;
}
