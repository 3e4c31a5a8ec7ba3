#include "core/http/client.h"

#include <strings.h>

#include "core/base/units.h"
#include "core/http/connection.h"

namespace dsec::http {
namespace {

using std::chrono::milliseconds;

constexpr int kMostRedirects = 10;
// A name that nobody knows or a port that nobody listens on is seldom a matter of seconds.
constexpr int kConnectTries = 3;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string named(const Request& request) { return request.method + " " + request.url.shown(); }

std::string status_text(const Answer& answer) {
  return std::to_string(answer.status) + (answer.reason.empty() ? "" : " " + answer.reason);
}

}  // namespace

const std::string* find_header(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers)
    if (key.size() == name.size() && ::strncasecmp(key.data(), name.data(), name.size()) == 0) return &value;
  return nullptr;
}

struct Client::Exchange : Outcome {};

Client::Client(ClientOptions options) : options_(std::move(options)) {}
Client::~Client() = default;

void Client::cancel() {
  cancelled_ = true;
  const std::lock_guard guard(mutex_);
  woken_.notify_all();
}

double Client::chance() {
  const std::lock_guard guard(mutex_);
  return std::uniform_real_distribution<>(0, 1)(random_);
}

void Client::pause(milliseconds wait) {
  std::unique_lock lock(mutex_);
  woken_.wait_for(lock, wait, [&] { return cancelled_.load(); });
}

void Client::check_allowed(const Url& url) const {
  if (url.scheme == "https" || url.is_loopback()) return;
  if (options_.trust && options_.trust(url.authority()).plain_http) return;
  throw usage_error(url.authority() + " would be asked without encryption")
      .hint("use https:, or set 'plain_http: true' for " + url.authority() +
            " under 'hosts' of config.yaml, dsec-home(5)");
}

Client::Exchange Client::once(Request request, Download* download) {
  std::unique_ptr<Connection> connection;
  {
    const std::lock_guard guard(mutex_);
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!connection) connection = std::make_unique<Connection>();
  const HostTrust trust = options_.trust ? options_.trust(request.url.authority()) : HostTrust{};
  Exchange exchange{connection->exchange(request, download, trust, options_, cancelled_)};
  const std::lock_guard guard(mutex_);
  idle_.push_back(std::move(connection));
  return exchange;
}

Client::Exchange Client::follow(Request request, Download* download) {
  for (int hops = 0;; ++hops) {
    check_allowed(request.url);
    Exchange exchange = once(request, download);
    const std::string* location = exchange.answer.header("Location");
    if (exchange.failure != Failure::None || !is_redirect(exchange.answer.status) || !location) return exchange;
    if (hops == kMostRedirects) throw failure("it leads through more than " + std::to_string(hops) + " redirects");
    const Url next = request.url.resolve(*location);
    if (request.url.scheme == "https" && next.scheme != "https")
      throw failure("it is redirected from https: to " + next.shown());
    if (!next.same_origin(request.url)) {
      request.authorization.clear();
      request.signature.reset();
    }
    if (exchange.answer.status == 303 && request.method != "HEAD") {
      request.method = "GET";
      request.body = {};
    }
    request.url = next;
  }
}

Answer Client::send(const Request& request, Download* download) {
  const bool repeatable = request.repeatable || request.method == "GET" || request.method == "HEAD";
  int failed = 0;
  for (;;) {
    if (cancelled_) throw failure("the transfer was cancelled");
    const std::uint64_t before = download ? download->done() : 0;
    Exchange exchange = attempt("cannot " + named(request), [&] { return follow(request, download); });
    if (exchange.failure == Failure::None && !is_passing(exchange.answer.status)) return std::move(exchange.answer);
    if (exchange.failure == Failure::Cancelled || cancelled_) throw failure("the transfer was cancelled");

    failed = download && download->done() > before ? 1 : failed + 1;
    const int most =
        exchange.failure == Failure::Unreachable ? std::min(options_.retry.tries, kConnectTries) : options_.retry.tries;
    milliseconds wait = wait_after(failed, options_.retry, chance());
    bool again = failed < most && exchange.failure != Failure::Final;
    if (exchange.failure == Failure::Broken) again = again && repeatable;
    if (exchange.failure == Failure::None) {
      const std::string* asked = exchange.answer.header("Retry-After");
      if (const auto after = asked ? parse_retry_after(*asked, std::chrono::system_clock::now()) : std::nullopt) {
        wait = std::max(wait, *after);
        again = again && wait <= options_.retry.patience;
      }
      // Whoever answered so did nothing, but 500 and 504 may come after the deed.
      again = again && (repeatable || exchange.answer.status == 429 || exchange.answer.status == 503);
      if (!again) return std::move(exchange.answer);
    }
    const std::string reason =
        exchange.failure == Failure::None ? "it was answered with " + status_text(exchange.answer) : exchange.reason;
    if (!again) {
      Error error = failure(reason).context("cannot " + named(request));
      if (!exchange.hint.empty()) error.hint(exchange.hint);
      throw error;
    }
    if (options_.notice) options_.notice(named(request) + ": " + reason + "; trying again in " + format_duration(wait));
    pause(wait);
  }
}

Error answer_error(const Request& request, const Answer& answer) {
  Error error = failure(named(request) + " was answered with " + status_text(answer));
  if (!answer.url.same_origin(request.url))
    error = failure(named(request) + ", which leads to " + answer.url.shown() + ", was answered with " +
                    status_text(answer));
  if (answer.status != 429 && answer.status != 503) return error;
  const std::string* asked = answer.header("Retry-After");
  const auto after = asked ? parse_retry_after(*asked, std::chrono::system_clock::now()) : std::nullopt;
  const std::string* limit = answer.header("RateLimit-Limit");
  if (limit) error.context("the server's rate limit is " + quote(*limit));
  if (after) return std::move(error).hint("again in " + format_duration(*after) + ": so long the server asks to wait");
  if (answer.status == 429) error.hint("log in, which often raises the limit, or use a mirror; dsec-oci(5)");
  return error;
}

}  // namespace dsec::http
