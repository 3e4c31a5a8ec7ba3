#include "runners/egress/gateway/tls_hello.h"

#include <catch2/catch.hpp>

namespace dsec::egress {
namespace {

std::string number(std::size_t value, unsigned size) {
  std::string text;
  while (size-- > 0) text += static_cast<char>(value >> 8 * size);
  return text;
}
std::string vector(const std::string& bytes, unsigned size) { return number(bytes.size(), size) + bytes; }
std::string extension(unsigned type, const std::string& body) { return number(type, 2) + vector(body, 2); }
std::string server_name(const std::string& host) {
  return extension(0, vector(std::string(1, '\0') + vector(host, 2), 2));
}

std::string handshake(const std::string& extensions) {
  const std::string body = "\x03\x03" + std::string(32, 'r') + vector("", 1) + vector("\x13\x01", 2) +
                           vector(std::string(1, '\0'), 1) + vector(extensions, 2);
  return "\x01" + vector(body, 3);
}
std::string records(const std::string& message, std::size_t piece = 16384) {
  std::string bytes;
  for (std::size_t at = 0; at < message.size(); at += piece)
    bytes += "\x16\x03\x01" + vector(message.substr(at, piece), 2);
  return bytes;
}

TEST_CASE("the server's name is found in a ClientHello", "[egress][tls]") {
  const TlsHello hello =
      parse_tls_hello(records(handshake(extension(43, "\x02\x03\x04") + server_name("Example.com"))));
  CHECK(hello.state == TlsHello::State::Done);
  CHECK(hello.server_name == "example.com");
  CHECK_FALSE(hello.encrypted);
}

TEST_CASE("a ClientHello may come in pieces, of records and of the stream", "[egress][tls]") {
  const std::string bytes = records(handshake(server_name("example.com")), 10);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const TlsHello hello = parse_tls_hello(bytes.substr(0, length));
    CHECK(hello.state == TlsHello::State::NeedMore);
  }
  CHECK(parse_tls_hello(bytes + "more").server_name == "example.com");
}

TEST_CASE("an encrypted ClientHello shows as such", "[egress][tls]") {
  const TlsHello hello =
      parse_tls_hello(records(handshake(server_name("cover.example") + extension(0xfe0d, "secret"))));
  CHECK(hello.encrypted);
  CHECK(hello.server_name == "cover.example");
}

TEST_CASE("a hello without a name has none", "[egress][tls]") {
  const TlsHello hello = parse_tls_hello(records(handshake(extension(43, "\x02\x03\x04"))));
  CHECK(hello.state == TlsHello::State::Done);
  CHECK(hello.server_name.empty());
}

TEST_CASE("what two readers could read in two ways is refused", "[egress][tls]") {
  CHECK(parse_tls_hello(records(handshake(server_name("a.example") + server_name("b.example")))).state ==
        TlsHello::State::Bad);
  CHECK(parse_tls_hello(records(handshake(server_name("a.example\0b" + std::string())))).state ==
        TlsHello::State::Done);
  CHECK(parse_tls_hello(records(handshake(server_name(std::string("a\0b", 3))))).state == TlsHello::State::Bad);
  CHECK(parse_tls_hello(records(handshake(server_name("10.0.0.1")))).state == TlsHello::State::Bad);
  std::string cut = handshake(server_name("a.example"));
  cut[cut.size() - 10] = '\x7f';
  CHECK(parse_tls_hello(records(cut)).state == TlsHello::State::Bad);
  CHECK(parse_tls_hello("\x16\x03\x01" + number(5, 2) + "\x01" + number(1 << 20, 3) + "x").state ==
        TlsHello::State::Bad);
}

TEST_CASE("other protocols are not TLS", "[egress][tls]") {
  CHECK(parse_tls_hello("GET / HTTP/1.1").state == TlsHello::State::NotTls);
  CHECK(parse_tls_hello("\x16\x09").state == TlsHello::State::NotTls);
  CHECK(parse_tls_hello("\x15\x03\x01").state == TlsHello::State::NotTls);
}

}  // namespace
}  // namespace dsec::egress
