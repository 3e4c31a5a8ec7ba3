#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::test {

/// What a client sent.
struct Seen {
  std::string method, target;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
};

/// What it gets: any bytes at all, so that answers can be as wrong as they like.
struct Reply {
  std::string bytes;
  std::chrono::milliseconds delay{0};  ///< before the first byte
  bool reset = false;                  ///< the connection ends by a reset
  bool hang = false;                   ///< nothing comes behind the bytes, and the connection stays
};

/// "HTTP/1.1 200 OK" with these header lines and the length of the body.
Reply answer(const std::string& status, const std::vector<std::string>& headers = {}, const std::string& body = "");

/// An HTTP server on a loopback port, for one test; each connection has one request and a thread.
class HttpServer {
 public:
  using Handler = std::function<Reply(const Seen&)>;
  /// The handler is called by one thread at a time.
  explicit HttpServer(Handler handler);
  ~HttpServer();

  std::uint16_t port() const noexcept { return port_; }
  /// "127.0.0.1:PORT".
  std::string authority() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string url(const std::string& target) const { return "http://" + authority() + target; }
  /// Every request so far.
  std::vector<Seen> seen();

 private:
  void accept_all();
  void serve(int connection);

  Handler handler_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::vector<Seen> seen_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace dsec::test
