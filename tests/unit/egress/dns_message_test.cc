#include "runners/egress/gateway/dns_message.h"

#include <catch2/catch.hpp>

namespace dsec::egress {
namespace {

std::string name(const std::string& text) {
  std::string wire;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('.', at), text.size());
    wire += static_cast<char>(end - at);
    wire += text.substr(at, end - at);
    at = end + 1;
  }
  return wire + '\0';
}

std::string number(unsigned value) { return {static_cast<char>(value >> 8), static_cast<char>(value)}; }

std::string record(const std::string& owner, unsigned type, unsigned ttl, const std::string& data) {
  return owner + number(type) + number(1) + number(0) + number(ttl) + number(static_cast<unsigned>(data.size())) + data;
}

std::string reply(const std::string& question, unsigned flags, const std::vector<std::string>& records) {
  std::string message = question;
  message.replace(2, 2, number(0x8000 | flags));
  message.replace(6, 2, number(static_cast<unsigned>(records.size())));
  for (const auto& each : records) message += each;
  return message;
}

TEST_CASE("a query is answered with the address that stands for its name", "[egress][dns]") {
  const std::string query = dns_query(0x1234, "example.com", kDnsA);
  const auto question = parse_dns_query(query);
  REQUIRE(question);
  CHECK(question->name == "example.com");
  CHECK(question->type == kDnsA);
  const std::string answer = dns_answer(*question, DnsCode::Ok, {*IpAddress::parse("198.18.0.1")}, 60);
  const auto parsed = parse_dns_reply(answer, 0x1234, "example.com", kDnsA);
  REQUIRE(parsed);
  CHECK(parsed->addresses == std::vector{*IpAddress::parse("198.18.0.1")});
  CHECK(parsed->ttl_seconds == 60);
  const auto six = parse_dns_query(dns_query(1, "example.com", kDnsAaaa));
  CHECK(parse_dns_reply(dns_answer(*six, DnsCode::Ok, {*IpAddress::parse("2001:db8:1::7")}, 60), 1, "example.com",
                        kDnsAaaa)
            ->addresses[0]
            .str() == "2001:db8:1::7");
}

TEST_CASE("names with bytes of no host name are told apart from those", "[egress][dns]") {
  std::string query = dns_query(1, "example.com", kDnsA);
  query[13] = '.';
  CHECK(parse_dns_query(query)->name == "?xample.com" + std::string());
  query[13] = 'E';
  CHECK(parse_dns_query(query)->name == "example.com");
}

TEST_CASE("what is no query is not answered", "[egress][dns]") {
  const std::string query = dns_query(1, "example.com", kDnsA);
  for (std::size_t length = 0; length < query.size(); ++length) CHECK_FALSE(parse_dns_query(query.substr(0, length)));
  CHECK_FALSE(parse_dns_query(reply(query, 0, {})));
  std::string two = query;
  two[5] = 2;
  CHECK_FALSE(parse_dns_query(two));
  // A name that points to itself.
  CHECK_FALSE(parse_dns_query(query.substr(0, 12) + "\xc0\x0c" + number(1) + number(1)));
}

TEST_CASE("aliases are followed in any order, and other records are passed over", "[egress][dns]") {
  const std::string query = dns_query(7, "www.example.com", kDnsA);
  const std::string four("\x08\x08\x08\x08"), other("\x0a\x01\x01\x01");
  const auto parsed = parse_dns_reply(reply(query, 0,
                                            {record(name("cdn.example.net"), kDnsA, 300, four),
                                             record(name("www.example.com"), kDnsCname, 20, name("a.example.net")),
                                             record(name("a.example.net"), kDnsCname, 900, name("cdn.example.net")),
                                             record(name("unasked.example"), kDnsA, 300, other)}),
                                      7, "www.example.com", kDnsA);
  REQUIRE(parsed);
  CHECK(parsed->addresses == std::vector{*IpAddress::parse("8.8.8.8")});
  CHECK(parsed->ttl_seconds == 20);
}

TEST_CASE("a reply must answer the very question", "[egress][dns]") {
  const std::string query = dns_query(7, "example.com", kDnsA);
  const std::string right = reply(query, 0, {record("\xc0\x0c", kDnsA, 300, "\x08\x08\x08\x08")});
  CHECK(parse_dns_reply(right, 7, "example.com", kDnsA)->addresses.size() == 1);
  CHECK_FALSE(parse_dns_reply(right, 8, "example.com", kDnsA));
  CHECK_FALSE(parse_dns_reply(right, 7, "example.org", kDnsA));
  CHECK_FALSE(parse_dns_reply(right, 7, "example.com", kDnsAaaa));
  for (std::size_t length = 0; length < right.size(); ++length)
    CHECK_FALSE(parse_dns_reply(right.substr(0, length), 7, "example.com", kDnsA));
  // An endless alias.
  const auto loop =
      parse_dns_reply(reply(query, 0, {record("\xc0\x0c", kDnsCname, 300, "\xc0\x0c")}), 7, "example.com", kDnsA);
  CHECK((!loop || loop->addresses.empty()));
  CHECK(parse_dns_reply(reply(query, 3, {}), 7, "example.com", kDnsA)->code == DnsCode::NoName);
  CHECK(parse_dns_reply(reply(query, 0x200, {}), 7, "example.com", kDnsA)->truncated);
}

}  // namespace
}  // namespace dsec::egress
