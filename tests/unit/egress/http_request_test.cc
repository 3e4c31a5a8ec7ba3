#include "runners/egress/gateway/http_request.h"

#include <catch2/catch.hpp>

namespace dsec::egress {
namespace {

using State = HttpHead::State;

std::string fault(const std::string& text) {
  const HttpHead head = parse_http_head(text);
  return head.state == State::Bad ? head.fault : head.state == State::Done ? "(none)" : "(not bad)";
}

TEST_CASE("a request names its host", "[egress][http]") {
  const HttpHead head = parse_http_head("GET /x?y HTTP/1.1\r\nHost: Example.com:8080\r\nAccept: */*\r\n\r\nrest");
  REQUIRE(head.state == State::Done);
  CHECK(head.host == "example.com");
  CHECK(head.port == 8080);
  CHECK(head.size == 58);
  CHECK(head.headers.size() == 2);
  const HttpHead literal = parse_http_head("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n");
  CHECK(literal.host == "2001:db8::1");
  CHECK(literal.host_is_address);
}

TEST_CASE("a proxy's requests name theirs in the target", "[egress][http]") {
  const HttpHead connect = parse_http_head("CONNECT example.com:443 HTTP/1.1\r\nHost: other.example\r\n\r\n");
  REQUIRE(connect.state == State::Done);
  CHECK(connect.host == "example.com");
  CHECK(connect.port == 443);
  const HttpHead get = parse_http_head("GET http://example.com?q HTTP/1.1\r\nHost: other.example\r\n\r\n");
  REQUIRE(get.state == State::Done);
  CHECK(get.host == "example.com");
  CHECK(get.absolute);
  CHECK(origin_form(get) == "?q");
}

TEST_CASE("heads may come in pieces", "[egress][http]") {
  const std::string text = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\n";
  for (std::size_t length = 0; length < text.size(); ++length)
    CHECK(parse_http_head(text.substr(0, length)).state == State::NeedMore);
  CHECK(parse_http_head(text).content_length == 3);
}

TEST_CASE("other protocols are not HTTP", "[egress][http]") {
  for (const char* text : {"SSH-2.0-OpenSSH_9.2\r\n", "EHLO host.example\r\n", "\x16\x03\x01", "*1\r\n$4\r\nPING\r\n",
                           "NICK name\r\n", "\n", "0042", "hello"})
    CHECK(parse_http_head(text).state == State::NotHttp);
}

TEST_CASE("what a server could read otherwise is not passed on", "[egress][http]") {
  const std::string start = "GET / HTTP/1.1\r\n";
  CHECK(fault(start + "\r\n") == "it names no host");
  CHECK(fault(start + "Host: a.example\r\nHost: b.example\r\n\r\n") == "it has two Host headers");
  CHECK(fault(start + "Host: a.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n") ==
        "it has two lengths");
  CHECK(fault(start + "Host: a.example\r\nContent-Length: +1\r\n\r\n") == "its length cannot be read");
  CHECK(fault(start + "Host: a.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n") ==
        "its transfer encoding is not known");
  CHECK(fault(start + "Host : a.example\r\n\r\n") == "a header cannot be read");
  CHECK(fault(start + "Host: a.example\r\n folded\r\n\r\n") == "a header cannot be read");
  CHECK(fault(start + "Host: a.example@b.example\r\n\r\n") == "its Host is no host");
  CHECK(fault(start + "Host: a.example\r\nUpgrade: foo, H2C\r\n\r\n") == "it upgrades to HTTP/2, which needs TLS");
  CHECK(fault("GET / HTTP/1.1\nHost: a.example\n\n") == "its lines do not end with CR LF");
  CHECK(fault("PRI * HTTP/2.0\r\n\r\n") == "it is not HTTP/1, and others need TLS");
  CHECK(fault("CONNECT example.com HTTP/1.1\r\n\r\n") == "CONNECT wants HOST:PORT");
  CHECK(fault(start + "Host: a.example\r\nX: " + std::string(kLongestHead, 'x') + "\r\n\r\n") ==
        "its headers are too long");
}

bool first_line_names_http(const std::string& text, std::size_t piece = std::string::npos) {
  FirstLine line;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    if (line.names_http(std::string_view(text).substr(at, piece))) return true;
    if (piece == std::string::npos) break;
  }
  return false;
}

TEST_CASE("a first line that a lenient server takes for a request's is told from other protocols", "[egress][http]") {
  for (const std::string& text :
       {std::string("\r\nGET / HTTP/1.1\r\n"), std::string("\n\n  GET / HTTP/1.1\n"), std::string("get / HTTP/1.1\r\n"),
        std::string("GET\t/\tHTTP/1.1\r\n"), std::string("GET\v/\vHTTP/1.1\r\n"), std::string("GET / hTTp/1.0\r\n"),
        "GET /" + std::string(70'000, 'x') + " HTTP/1.1\r\n",
        std::string("AMETHODTHATISMUCHTOOLONGFORONE / HTTP/1.1\r\n"), std::string("x\rGET /hhthttp/ HTTP/1.1\r\n"),
        std::string("PRI * HTTP/2.0\r\n")}) {
    CAPTURE(text.substr(0, 40));
    CHECK(first_line_names_http(text));
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3}}) CHECK(first_line_names_http(text, piece));
    // Before the server has a whole line.
    CHECK(first_line_names_http(text.substr(0, text.find_first_of("\r\n", text.find_first_not_of("\r\n x")))));
  }
  for (const char* text : {"EHLO http.example\r\nSubject: HTTP/1.1\r\n", "SSH-2.0-x\r\n",
                           "0032git-upload-pack /http/\n", "HTTP HTTP/ HTTP/x\n", "\r\n\r\n", ""})
    CHECK_FALSE(first_line_names_http(text));
}

std::size_t body(const std::string& headers, const std::string& bytes, HttpBody& result) {
  result = HttpBody(parse_http_head("POST / HTTP/1.1\r\nHost: a.example\r\n" + headers + "\r\n"));
  return result.consume(bytes);
}

TEST_CASE("the end of a body is found", "[egress][http]") {
  HttpBody found;
  CHECK(body("", "GET", found) == 0);
  CHECK(found.done());
  CHECK(body("Content-Length: 4\r\n", "bodyGET", found) == 4);
  CHECK(found.done());
  const std::string chunks = "4;x=y\r\nbody\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n";
  CHECK(body("Transfer-Encoding: chunked\r\n", chunks + "GET", found) == chunks.size());
  CHECK(found.done());
  body("Transfer-Encoding: chunked\r\n", "", found);
  for (const char c : chunks) {
    CHECK_FALSE(found.done());
    CHECK(found.consume({&c, 1}) == 1);
  }
  CHECK(found.done());
  for (const char* wrong : {"x\r\n", "4\nbody", "4\r\nbodyxx\r\n", "-1\r\n", "\r\n", "11111111111111111\r\n",
                            "4;a\rb\r\nbody\r\n", "4;\x01\r\nbody\r\n", "0\r\nTrailer: a\rb\r\n\r\n"}) {
    body("Transfer-Encoding: chunked\r\n", wrong, found);
    CHECK(found.bad());
  }
}

}  // namespace
}  // namespace dsec::egress
