#include "core/http/client.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "core/base/files.h"
#include "tests/support/http_server.h"

namespace dsec::http {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using test::answer;
using test::HttpServer;
using test::Reply;
using test::Seen;

ClientOptions quick() {
  ClientOptions options;
  options.connect_timeout = milliseconds(3000);
  options.stall_timeout = milliseconds(1000);
  options.retry.first_wait = milliseconds(1);
  options.retry.longest_wait = milliseconds(5);
  return options;
}

Request get(const HttpServer& server, const std::string& target = "/x") {
  Request request;
  request.url = Url::parse(server.url(target));
  return request;
}

std::string told(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    std::string text = error.message();
    for (const std::string& hint : error.hints()) text += " | " + hint;
    return text;
  }
  return "nothing";
}

std::string value(const Seen& seen, const std::string& name) {
  const auto found = seen.headers.find(name);
  return found == seen.headers.end() ? "" : found->second;
}

TEST_CASE("an answer comes with its status, headers and body", "[http]") {
  HttpServer server([](const Seen&) { return answer("404 Not Found", {"X-Why: gone"}, "no such thing"); });
  Client client(quick());
  const Answer got = client.send(get(server, "/a%20b?c=d"));
  CHECK(got.status == 404);
  CHECK(got.reason == "Not Found");
  CHECK(*got.header("x-why") == "gone");
  CHECK(got.body == "no such thing");
  REQUIRE(server.seen().size() == 1);
  CHECK(server.seen()[0].target == "/a%20b?c=d");
  CHECK_THAT(value(server.seen()[0], "user-agent"), Catch::Matchers::StartsWith("dsec/"));
}

TEST_CASE("a body is sent from a part of a file, and again when the request is repeated", "[http]") {
  int tries = 0;
  HttpServer server([&](const Seen&) { return ++tries == 1 ? answer("503 Busy") : answer("201 Created"); });
  const TempDirectory directory(std::filesystem::temp_directory_path());
  TempFile file(directory.path());
  write_all(file.fd(), "0123456789");
  Client client(quick());
  Request request = get(server);
  request.method = "PUT";
  request.body.fd = file.fd();
  request.body.offset = 3;
  request.body.length = 4;
  CHECK(client.send(request).status == 201);
  REQUIRE(server.seen().size() == 2);
  for (const Seen& seen : server.seen()) CHECK(seen.body == "3456");
}

TEST_CASE("an answer of success without the resource is no download", "[http]") {
  for (const char* status : {"204 No Content", "202 Accepted", "203 Other"}) {
    HttpServer server([&](const Seen&) { return answer(status); });
    Client client(quick());
    Download download(4, [](std::string_view) {});
    CHECK_THAT(told([&] { client.send(get(server), &download); }), Contains(std::string("answered with ") + status));
    CHECK(server.seen().size() == 1);
  }
}

TEST_CASE("passing failures are repeated and told, others are not", "[http][retry]") {
  std::vector<std::string> statuses = {"500 No", "429 Slow down", "502 Bad", "200 OK"};
  std::size_t next = 0;
  HttpServer server([&](const Seen&) { return answer(statuses[next++]); });
  ClientOptions options = quick();
  std::vector<std::string> notices;
  options.notice = [&](const std::string& text) { notices.push_back(text); };
  Client client(options);
  CHECK(client.send(get(server)).status == 200);
  REQUIRE(notices.size() == 3);
  CHECK_THAT(notices[1], Contains("answered with 429 Slow down; trying again in"));

  next = 0;
  statuses = {"403 No"};
  CHECK(client.send(get(server)).status == 403);
  CHECK(next == 1);
}

TEST_CASE("a server that only ever fails is given up, and its last answer returned", "[http][retry]") {
  HttpServer server([](const Seen&) { return answer("500 Oh"); });
  Client client(quick());
  CHECK(client.send(get(server)).status == 500);
  CHECK(server.seen().size() == 6);
}

TEST_CASE("what may have been done is not repeated unless the request allows it", "[http][retry]") {
  HttpServer server([](const Seen&) { return Reply{"", milliseconds(0), true}; });
  Client client(quick());
  Request request = get(server);
  request.method = "POST";
  request.repeatable = false;
  CHECK_THROWS_AS(client.send(request), Error);
  CHECK(server.seen().size() == 1);
}

TEST_CASE("Retry-After is waited for, and too long a wait is told instead", "[http][retry]") {
  std::string wait = "1";
  int tries = 0;
  HttpServer server([&](const Seen&) {
    return ++tries == 1 ? answer("429 Too Many Requests", {"Retry-After: " + wait, "RateLimit-Limit: 100;w=21600"})
                        : answer("200 OK");
  });
  Client client(quick());
  const auto began = std::chrono::steady_clock::now();
  CHECK(client.send(get(server)).status == 200);
  CHECK(std::chrono::steady_clock::now() - began >= milliseconds(1000));

  tries = 0;
  wait = "7200";
  const Request request = get(server);
  const Answer refused = client.send(request);
  CHECK(refused.status == 429);
  CHECK(tries == 1);
  const std::string text = told([&] { throw answer_error(request, refused); });
  CHECK_THAT(text, Contains("429 Too Many Requests") && Contains("100;w=21600") && Contains("2h"));
}

TEST_CASE("Retry-After is a number or a date", "[http][retry]") {
  const auto now = std::chrono::system_clock::from_time_t(784111777);  // Sun, 06 Nov 1994 08:49:37 GMT
  CHECK(parse_retry_after("120", now) == milliseconds(120'000));
  CHECK(parse_retry_after("Sun, 06 Nov 1994 08:50:37 GMT", now) == milliseconds(60'000));
  CHECK(parse_retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now) == milliseconds(0));
  CHECK_FALSE(parse_retry_after("soon", now));
  CHECK_FALSE(parse_retry_after("-5", now));
  CHECK_FALSE(parse_retry_after("", now));
  CHECK(parse_retry_after("99999999999999999999", now).value_or(milliseconds(1)) >= milliseconds(0));
}

TEST_CASE("waits grow up to a limit and are spread", "[http][retry]") {
  const RetryPolicy policy{6, milliseconds(100), milliseconds(1000), milliseconds(5000)};
  CHECK(wait_after(1, policy, 0) == milliseconds(50));
  CHECK(wait_after(1, policy, 1) == milliseconds(100));
  CHECK(wait_after(3, policy, 1) == milliseconds(400));
  CHECK(wait_after(50, policy, 1) == milliseconds(1000));
}

/// A server with one resource that breaks off after so many bytes of each answer.
struct Resource {
  std::string content;
  std::size_t breaks_after;
  bool ranges = true;
  std::string etag = "\"v1\"";

  Reply operator()(const Seen& seen) const {
    std::size_t from = 0, end = content.size();
    std::string status = "200 OK";
    std::vector<std::string> headers = {"ETag: " + etag};
    const std::string range = value(seen, "range"), condition = value(seen, "if-range");
    if (ranges && !range.empty() && (condition.empty() || condition == etag)) {
      from = std::stoul(range.substr(6));
      if (const std::string last = range.substr(range.find('-') + 1); !last.empty()) end = std::stoul(last) + 1;
      status = "206 Partial Content";
      headers.push_back("Content-Range: bytes " + std::to_string(from) + "-" + std::to_string(end - 1) + "/" +
                        std::to_string(content.size()));
    }
    const std::string part = content.substr(from, end - from);
    Reply reply = answer(status, headers, part);
    if (part.size() > breaks_after) reply.bytes.resize(reply.bytes.size() - part.size() + breaks_after);
    return reply;
  }
};

std::string numbers(std::size_t size) {
  std::string text;
  for (int i = 0; text.size() < size; ++i) text += std::to_string(i) + " ";
  return text.substr(0, size);
}

TEST_CASE("a download goes on where it broke off", "[http][download]") {
  Resource resource{numbers(100'000), 30'000};
  HttpServer server(resource);
  Client client(quick());
  std::string got;
  Download download(resource.content.size(), [&](std::string_view piece) { got += piece; });
  CHECK(client.send(get(server), &download).status == 206);
  CHECK(got == resource.content);
  REQUIRE(server.seen().size() == 4);
  CHECK(value(server.seen()[1], "range") == "bytes=30000-");
  CHECK(value(server.seen()[1], "if-range") == "\"v1\"");
}

TEST_CASE("a part is read alone, and goes on where it broke off", "[http][download]") {
  Resource resource{numbers(100'000), 3'000};
  HttpServer server(resource);
  Client client(quick());
  std::string got;
  Download download(1'000, 5'000, resource.content.size(), [&](std::string_view piece) { got += piece; });
  CHECK(client.send(get(server), &download).status == 206);
  CHECK(got == resource.content.substr(1'000, 5'000));
  REQUIRE(server.seen().size() == 2);
  CHECK(value(server.seen()[0], "range") == "bytes=1000-5999");
  CHECK(value(server.seen()[1], "range") == "bytes=4000-5999");
}

TEST_CASE("a part of another whole, or of a server without ranges, is refused", "[http][download]") {
  HttpServer server(Resource{numbers(1000), 5000}), without(Resource{numbers(1000), 5000, false});
  Client client(quick());
  std::string got;
  const auto sink = [&](std::string_view piece) { got += piece; };
  Download other(0, 10, 999, sink), whole(0, 10, 1000, sink);
  CHECK_THAT(told([&] { client.send(get(server), &other); }), Contains("1000 bytes instead of 999"));
  CHECK_THAT(told([&] { client.send(get(without), &whole); }), Contains("knows no ranges"));
  CHECK(got.empty());
}

TEST_CASE("a server without ranges is read again, and no byte comes twice", "[http][download]") {
  std::string content = numbers(50'000);
  int tries = 0;
  HttpServer server([&](const Seen& seen) {
    return Resource{content, ++tries == 1 ? 20'000u : 1'000'000u, false}(seen);
  });
  Client client(quick());
  std::string got;
  Download download(content.size(), [&](std::string_view piece) { got += piece; });
  client.send(get(server), &download);
  CHECK(got == content);
}

TEST_CASE("a download that makes no progress ends with an error that says how far it came", "[http][download]") {
  HttpServer server(Resource{numbers(1000), 0});
  Client client(quick());
  Download download(1000, [](std::string_view) {});
  CHECK_THAT(told([&] { client.send(get(server), &download); }), Contains("0 of 1000 bytes"));
}

TEST_CASE("a length that is not the expected one is refused at once", "[http][download]") {
  HttpServer server(Resource{numbers(1000), 5000});
  Client client(quick());
  Download shorter(999, [](std::string_view) {}), longer(1001, [](std::string_view) {});
  CHECK_THAT(told([&] { client.send(get(server), &shorter); }), Contains("1000 bytes instead of 999"));
  CHECK_THAT(told([&] { client.send(get(server), &longer); }), Contains("1000 bytes instead of 1001"));
  CHECK(server.seen().size() == 2);
}

TEST_CASE("an answer without a length that does not end is cut off where it should have ended", "[http][download]") {
  HttpServer server([](const Seen&) { return Reply{"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + numbers(5000)}; });
  Client client(quick());
  std::string got;
  Download download(1000, [&](std::string_view piece) { got += piece; });
  CHECK_THAT(told([&] { client.send(get(server), &download); }), Contains("more than the 1000 bytes"));
  CHECK(got.size() <= 1000);
}

TEST_CASE("another part than was asked for is refused", "[http][download]") {
  HttpServer server([](const Seen& seen) {
    if (value(seen, "range").empty()) return Resource{numbers(1000), 100}(seen);
    return answer("206 Partial Content", {"Content-Range: bytes 50-999/1000"}, numbers(950));
  });
  Client client(quick());
  Download download(1000, [](std::string_view) {});
  CHECK_THAT(told([&] { client.send(get(server), &download); }), Contains("another part"));
}

TEST_CASE("what the sink throws ends the download", "[http][download]") {
  HttpServer server(Resource{numbers(1000), 5000});
  Client client(quick());
  Download download(1000, [](std::string_view) { throw failure("the disk is full"); });
  CHECK_THAT(told([&] { client.send(get(server), &download); }), Contains("the disk is full"));
  CHECK(server.seen().size() == 1);
}

TEST_CASE("a stalled server is left after the time given", "[http]") {
  HttpServer server([](const Seen&) {
    Reply reply{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123"};
    reply.hang = true;
    return reply;
  });
  ClientOptions options = quick();
  options.retry.tries = 1;
  Client client(options);
  CHECK_THAT(told([&] { client.send(get(server)); }), Contains("nothing came for 1 s"));
}

TEST_CASE("cancelling ends a transfer and the waits between tries", "[http]") {
  HttpServer server([](const Seen&) {
    Reply reply{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123"};
    reply.hang = true;
    return reply;
  });
  ClientOptions options = quick();
  options.stall_timeout = std::chrono::minutes(10);
  Client client(options);
  std::string text;
  std::thread sender([&] { text = told([&] { client.send(get(server)); }); });
  while (server.seen().empty()) std::this_thread::sleep_for(milliseconds(5));
  client.cancel();
  sender.join();
  CHECK_THAT(text, Contains("cancelled"));
  CHECK_THROWS_AS(client.send(get(server)), Error);
}

TEST_CASE("credentials do not follow a redirect to another origin", "[http][redirect]") {
  HttpServer other([](const Seen&) { return answer("200 OK", {}, "there"); });
  HttpServer server([&](const Seen& seen) {
    if (seen.target == "/far") return answer("307 Go", {"Location: " + other.url("/blob?signature=s3cret")});
    if (seen.target == "/near") return answer("302 Go", {"Location: here"});
    return answer("200 OK", {}, "here");
  });
  Client client(quick());
  Request request = get(server, "/far");
  request.authorization = "Bearer t0ken";
  const Answer far = client.send(request);
  CHECK(far.body == "there");
  CHECK(far.url.shown() == other.url("/blob?…"));
  CHECK(value(other.seen().at(0), "authorization").empty());
  CHECK(value(server.seen().at(0), "authorization") == "Bearer t0ken");
  request.url = Url::parse(server.url("/near"));
  CHECK(client.send(request).body == "here");
  CHECK(server.seen().back().target == "/here");
  CHECK(value(server.seen().back(), "authorization") == "Bearer t0ken");
}

TEST_CASE("redirects end somewhere, and not at plain HTTP elsewhere", "[http][redirect]") {
  std::string location = "/again";
  HttpServer server([&](const Seen&) { return answer("302 Go", {"Location: " + location}); });
  Client client(quick());
  CHECK_THAT(told([&] { client.send(get(server)); }), Contains("more than 10 redirects"));
  location = "http://registry.example/x";
  CHECK_THAT(told([&] { client.send(get(server)); }), Contains("without encryption") && Contains("plain_http"));
  location = "ftp://127.0.0.1/x";
  CHECK_THAT(told([&] { client.send(get(server)); }), Contains("no http: or https: URL"));
}

TEST_CASE("a document that is too large is refused", "[http]") {
  HttpServer server([](const Seen&) { return answer("200 OK", {}, std::string(100'000, 'x')); });
  ClientOptions options = quick();
  options.largest_document = 99'999;
  Client client(options);
  CHECK_THAT(told([&] { client.send(get(server)); }), Contains("larger than 99999 bytes"));
}

TEST_CASE("headers without end are refused", "[http]") {
  std::string lines;
  for (int i = 0; i < 40'000; ++i) lines += "X-Header: value\r\n";
  HttpServer server([&](const Seen&) { return Reply{"HTTP/1.1 200 OK\r\n" + lines + "\r\n"}; });
  Client client(quick());
  CHECK_THAT(told([&] { client.send(get(server)); }), Contains("headers"));
}

TEST_CASE("what cannot be reached is told with the errno", "[http]") {
  std::string url;
  {
    HttpServer gone([](const Seen&) { return Reply{}; });
    url = gone.url("/");
  }
  Client client(quick());
  Request request;
  request.url = Url::parse(url);
  CHECK_THAT(told([&] { client.send(request); }), Contains("Connection refused (ECONNREFUSED)"));
}

TEST_CASE("many threads may send at once", "[http]") {
  HttpServer server([](const Seen& seen) { return answer("200 OK", {}, seen.target); });
  Client client(quick());
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (int k = 0; k < 5; ++k)
        if (const std::string target = "/" + std::to_string(i) + "/" + std::to_string(k);
            client.send(get(server, target)).body == target)
          ++right;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 40);
}

TEST_CASE("a part of another version than was asked for is refused", "[http]") {
  std::string etag = "\"one\"";
  HttpServer server([&](const Seen& seen) {
    if (value(seen, "if-range") == "\"gone\"") return answer("200 OK", {"ETag: " + etag}, "0123456789");
    return answer("206 Partial Content", {"ETag: " + etag, "Content-Range: bytes 2-4/10"}, "234");
  });
  Client client(quick());
  const auto read = [&](const std::string& version) {
    std::string got;
    Download download(2, 3, 10, [&](std::string_view piece) { got += piece; });
    download.etag = version;
    client.send(get(server), &download);
    return got + download.etag;
  };
  CHECK(read("") == "234\"one\"");
  CHECK(read("\"one\"") == "234\"one\"");
  CHECK(value(server.seen().back(), "if-range") == "\"one\"");
  CHECK_THAT(told([&] { read("\"two\""); }), Contains("it changed while it was read"));
  CHECK_THAT(told([&] { read("\"gone\""); }), Contains("it changed while it was read"));
  etag = "W/\"weak\"";
  CHECK(read("") == "234");
}

TEST_CASE("a signature goes to the origin alone", "[http]") {
  HttpServer other([](const Seen&) { return answer("200 OK"); });
  HttpServer server([&](const Seen& seen) {
    return seen.target == "/x" ? answer("307 Elsewhere", {"Location: " + other.url("/y")}) : answer("200 OK");
  });
  Client client(quick());
  Request request = get(server);
  request.signature = std::make_shared<const AwsSignature>(AwsSignature{"eu-west-1", "s3", "KEYID", "SECRET", "TOKEN"});
  request.headers = {{"x-amz-content-sha256", "UNSIGNED-PAYLOAD"}};
  CHECK(client.send(request).ok());
  const Seen first = server.seen().at(0), second = other.seen().at(0);
  CHECK_THAT(value(first, "authorization"), Contains("AWS4-HMAC-SHA256 Credential=KEYID/") &&
                                                Contains("/eu-west-1/s3/aws4_request") &&
                                                Contains("host;x-amz-content-sha256;x-amz-date;x-amz-security-token"));
  CHECK(value(first, "x-amz-security-token") == "TOKEN");
  CHECK(value(second, "authorization").empty());
  CHECK(value(second, "x-amz-security-token").empty());
}

}  // namespace
}  // namespace dsec::http
