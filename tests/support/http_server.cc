#include "tests/support/http_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"

namespace dsec::test {
namespace {

using std::chrono::milliseconds;

constexpr int kPollMs = 20;

}  // namespace

Reply answer(const std::string& status, const std::vector<std::string>& headers, const std::string& body) {
  std::string text = "HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size());
  for (const std::string& header : headers) text += "\r\n" + header;
  return {text + "\r\n\r\n" + body};
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), plain, size) != 0 || ::listen(listener_.get(), 64) != 0 ||
      ::getsockname(listener_.get(), plain, &size) != 0)
    throw system_error("listen for a test");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  stopped_ = true;
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<Seen> HttpServer::seen() {
  const std::lock_guard guard(mutex_);
  return seen_;
}

void HttpServer::accept_all() {
  while (!stopped_) {
    pollfd ready{listener_.get(), POLLIN, 0};
    if (::poll(&ready, 1, kPollMs) != 1) continue;
    const int connection = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0) threads_.emplace_back([this, connection] { serve(connection); });
  }
}

void HttpServer::serve(int number) {
  const UniqueFd connection(number);
  std::string text;
  std::optional<std::size_t> head;
  std::size_t length = 0;
  Seen seen;
  while (!head || text.size() < *head + length) {
    pollfd ready{connection.get(), POLLIN, 0};
    if (::poll(&ready, 1, kPollMs) != 1) {
      if (stopped_) return;
      continue;
    }
    char piece[64 << 10];
    const ssize_t got = ::recv(connection.get(), piece, sizeof piece, 0);
    if (got <= 0) return;
    text.append(piece, static_cast<std::size_t>(got));
    const std::size_t end = text.find("\r\n\r\n");
    if (head || end == std::string::npos) continue;
    head = end + 4;
    seen.method = text.substr(0, text.find(' '));
    seen.target = text.substr(seen.method.size() + 1, text.find(' ', seen.method.size() + 1) - seen.method.size() - 1);
    for (std::size_t at = text.find("\r\n") + 2; at < end + 2;) {
      const std::size_t stop = text.find("\r\n", at), colon = text.find(": ", at);
      std::string name = text.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      seen.headers[name] = text.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    if (const auto found = seen.headers.find("content-length"); found != seen.headers.end())
      length = std::stoul(found->second);
    if (seen.headers.count("expect")) ::send(connection.get(), "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
  }
  seen.body = text.substr(*head);
  Reply reply;
  {
    const std::lock_guard guard(mutex_);
    seen_.push_back(seen);
    reply = handler_(seen);
  }
  for (auto waited = milliseconds(0); waited < reply.delay && !stopped_; waited += milliseconds(kPollMs))
    std::this_thread::sleep_for(milliseconds(kPollMs));
  for (std::size_t sent = 0; sent < reply.bytes.size();) {
    const ssize_t part = ::send(connection.get(), reply.bytes.data() + sent, reply.bytes.size() - sent, MSG_NOSIGNAL);
    if (part <= 0) return;
    sent += static_cast<std::size_t>(part);
  }
  while (reply.hang && !stopped_) std::this_thread::sleep_for(milliseconds(kPollMs));
  if (!reply.reset) return;
  const linger now{1, 0};
  ::setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

}  // namespace dsec::test
