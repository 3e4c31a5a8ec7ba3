#include "core/engine/http_exchange.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::engine {
namespace {
using Catch::Contains;

struct Exchange {
  std::string sent, body;
  HttpResponse head;
};

// A server that answers with these bytes, whatever it is asked.
Exchange ask(const HttpRequest& request, const std::string& answer) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]);
  UniqueFd server(ends[1]);
  // Small enough to be taken whole before anybody reads.
  write_all(server.get(), answer);
  ::shutdown(server.get(), SHUT_WR);
  Exchange seen;
  http_exchange(ours.get(), request,
                {.head = [&](const HttpResponse& head) { seen.head = head; },
                 .body = [&](std::string_view part) { seen.body += part; }});
  ::shutdown(ours.get(), SHUT_WR);
  seen.sent = read_all(server.get());
  return seen;
}

TEST_CASE("a request has what servers expect, and the caller's headers win", "[engine][http]") {
  const Exchange plain = ask({.path = "/a?b=c", .host = "localhost:8080"}, "HTTP/1.1 204 No Content\r\n\r\n");
  CHECK(plain.sent ==
        "GET /a?b=c HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: dsec\r\nAccept: */*\r\nConnection: close\r\n\r\n");
  const Exchange put = ask({.method = "PUT", .headers = {"host: other", "X-Y: z"}, .body = "12345"},
                           "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nok");
  CHECK_THAT(put.sent, Contains("Content-Length: 5\r\nhost: other\r\nX-Y: z\r\n\r\n12345"));
  CHECK_THAT(put.sent, !Contains("Host:"));
  CHECK(put.head.status == 201);
  CHECK(put.head.reason == "Made");
  CHECK(put.body == "ok");
}

TEST_CASE("content comes by its length, in chunks, or up to the end", "[engine][http]") {
  CHECK(ask({}, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef").body == "abc");
  CHECK(ask({}, "HTTP/1.0 200 OK\n\nall of it").body == "all of it");
  const Exchange chunks = ask({},
                              "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nX: y\r\n\r\n"
                              "4\r\nabcd\r\nA;note=1\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\nrest");
  CHECK(chunks.body == "abcd0123456789");
  CHECK(chunks.head.header("x") == "y");
  CHECK(ask({.method = "HEAD"}, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n").body.empty());
}

TEST_CASE("an answer that is cut or is not HTTP is an error", "[engine][http]") {
  CHECK_THROWS_WITH(ask({}, ""), Contains("within the head"));
  CHECK_THROWS_WITH(ask({}, "SSH-2.0-OpenSSH\r\n"), Contains("is not HTTP"));
  CHECK_THROWS_WITH(ask({}, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), Contains("7 bytes early"));
  CHECK_THROWS_WITH(ask({}, "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc"), Contains("length of '-1'"));
  CHECK_THROWS_WITH(ask({}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), Contains("no size"));
  CHECK_THROWS_WITH(ask({}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"), Contains("longer"));
  CHECK_THROWS_WITH(ask({}, "HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), Contains("no ':'"));
}

TEST_CASE("no part of a request can begin another", "[engine][http]") {
  CHECK_THROWS_WITH(ask({.path = "/ HTTP/1.1\r\nX: y"}, ""), Contains("line end"));
  CHECK_THROWS_WITH(ask({.headers = {"A: b\nC: d"}}, ""), Contains("line end"));
  CHECK_THROWS_WITH(ask({.headers = {"nothing"}}, ""), Contains("has no ':'"));
}

}  // namespace
}  // namespace dsec::engine
