#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/http/message.h"
#include "core/http/retry.h"

namespace dsec::http {

/// What is particular about one host.
struct HostTrust {
  bool plain_http = false;                     ///< http: is accepted; on the loopback it always is
  std::string ca_pem;                          ///< certificates that are trusted beside the system's
  std::string client_certificate, client_key;  ///< files; empty: none
};

struct ClientOptions {
  std::chrono::milliseconds connect_timeout{15'000};
  std::chrono::milliseconds stall_timeout{60'000};  ///< without a byte in either direction
  RetryPolicy retry;
  std::uint64_t largest_document = 4 << 20;  ///< bytes of an answer that is kept in memory
  /// "host" or "host:port".
  std::function<HostTrust(const std::string& authority)> trust;
  /// What a person may want to know: that a server asked to wait, and how long.
  std::function<void(const std::string& message)> notice;
};

class Connection;

/// HTTP/1.1 and TLS through libcurl, which reads the proxies of the environment (not for the loopback). Redirects are
/// followed, at most ten, without Authorization or signature once they leave the origin, never from https: to http: and
/// with the same rules for plain http:. What fails for a passing reason (a connection that broke, 408, 429, 5xx) is
/// repeated, with waits that grow and that honour Retry-After. Any number of threads may send at once; connections are
/// kept.
class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();

  /// Returns the last answer, whatever its status. The body of a 200 or 206 goes into `download` where there is one: a
  /// broken connection is taken up again by Range, under If-Range where the server gave a strong ETag, and a server
  /// that knows no ranges is read again from the start, without giving the same bytes twice. Throws Error when there is
  /// no answer, when there are more or fewer bytes than `download` expects, and after cancel(). An Error of the
  /// download's sink is passed on and not repeated.
  Answer send(const Request& request, Download* download = nullptr);

  /// Ends what is being sent, within about a second, and all that is sent from now on, by an Error.
  void cancel();

 private:
  struct Exchange;
  Exchange once(Request request, Download* download);
  Exchange follow(Request request, Download* download);
  void pause(std::chrono::milliseconds wait);
  void check_allowed(const Url& url) const;
  double chance();

  const ClientOptions options_;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::mt19937 random_{std::random_device{}()};
};

/// "GET https://host/x was answered with 404 Not Found", and how long to wait where a rate limit is told.
Error answer_error(const Request& request, const Answer& answer);

}  // namespace dsec::http
