#include "runners/egress/gateway/relay.h"

#include <sys/epoll.h>

#include "core/base/error.h"
#include "runners/egress/gateway/tcp_socket.h"

namespace dsec::egress {
namespace {

// For the first bytes to come, for a last answer to be taken.
constexpr std::chrono::milliseconds kFirstBytes{15'000}, kLastAnswer{2'000};

// What a client of TLS gets instead of a reset: its library says "access denied".
constexpr std::string_view kTlsDenied{"\x15\x03\x03\x00\x02\x02\x31", 7};

}  // namespace

Relay::Relay(Sandbox& sandbox, UniqueFd client, IpAddress address, std::uint16_t port)
    : sandbox_(sandbox), loop_(sandbox.host().loop), client_(std::move(client)), address_(address) {
  target_.address = address;
  target_.port = port;
}

Relay::~Relay() = default;

void Relay::start() {
  client_watch_ =
      std::make_unique<Watch>(loop_, client_.get(), EPOLLIN, [this](std::uint32_t events) { on_client(events); });
  keep_alive(client_.get());
  end_by_reset(client_.get(), true);
  expect_record(true);
  static const IpAddress sandbox4 = *IpAddress::parse(kSandboxV4), sandbox6 = *IpAddress::parse(kSandboxV6);
  static const IpAddress gateway4 = *IpAddress::parse(kGatewayV4), gateway6 = *IpAddress::parse(kGatewayV6);
  const SpecialRange* special = special_range(address_);
  if (address_ == sandbox4 || address_ == sandbox6 || (special && std::string_view(special->what) == "loopback"))
    return reset("deny", "the gateway's own port was connected to");
  if (std::string reason; !sandbox_.admit(reason)) return reset("deny", reason);
  timer_ = std::make_unique<Timer>(loop_, kFirstBytes, [this] { refuse("it said nothing that names a host"); });
  if (target_.port == kDnsPort) {
    stage_ = Stage::Dns;
    expect_record(false);
    timer_.reset();
    return;
  }
  if (address_ == gateway4 || address_ == gateway6) {
    if (target_.port != kProxyPort) return reset("deny", "the gateway serves no such port");
    proxy_ = true;
    return;
  }
  if (const auto name = sandbox_.name_at(address_)) {
    if (name->empty()) return reset("deny", "the address stands for no name");
    target_.host = *name;
    target_.address.reset();
  }
  consult_address();
}

void Relay::check() {
  if (stage_ == Stage::Over || stage_ == Stage::Answer || stage_ == Stage::Dns || proxy_) return;
  const NetworkVerdict verdict = verdict_now();
  // An address that no rule has let in waits for a name.
  const bool waits = stage_ == Stage::Sniff && !decided_ && target_.host.empty() && !by_address_alone();
  if (waits && !verdict.reason.starts_with("deny")) return;
  if (!verdict.allowed) cut("the policy was changed: " + verdict.reason);
}

// By the policy that holds now, and not the one that it began under.
NetworkVerdict Relay::verdict_now() {
  const NetworkPolicy& policy = sandbox_.policy();
  NetworkVerdict verdict = evaluate(policy, target_);
  if (inject_) {
    // The policy that it pointed into is gone.
    inject_ = injection_for(policy, target_.host);
    if (verdict.reason.starts_with("deny")) return {false, verdict.reason};
    if (!inject_) return {false, "no secret goes along any more"};
    const std::optional<std::string> value = sandbox_.secret(*inject_);
    const bool same = value && server_port_ == inject_->port && header_ == header_line(*inject_, *value);
    if (!header_.empty() && !same) return {false, "another secret goes along"};
    verdict.allowed = true;
  }
  // It leads to the address that the sandbox named, which a rule by name does not allow.
  if (verdict.allowed && by_address_alone()) verdict = evaluate(policy, {"", target_.address, target_.port});
  if (verdict.allowed && also_named_) verdict = evaluate(policy, *also_named_);
  if (verdict.allowed && policy.strict && !hidden_.empty()) return {false, "strict: " + hidden_};
  if (!verdict.allowed || !server_address_) return verdict;
  return evaluate_dial(policy, *server_address_, server_port_, Transport::Tcp, sandbox_.host().owns(*server_address_));
}

void Relay::cut(const std::string& reason) {
  if (stage_ != Stage::Over) reset("deny", reason);
}

std::string Relay::http_answer(const char* status, const std::string& text) const {
  return "HTTP/1.1 " + std::string(status) +
         "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: " + std::to_string(text.size()) +
         "\r\nX-Dsec-Network: refused\r\nConnection: close\r\n\r\n" + text;
}

// A client that has not spoken yet is waited for a little, since HTTP and TLS can be told why.
void Relay::give_up(bool denied, const std::string& reason) {
  if (stage_ != Stage::Sniff || decided_) return denied ? refuse(reason) : fail(reason);
  given_up_ = reason;
  given_up_is_denial_ = denied;
  timer_ = std::make_unique<Timer>(loop_, kLastAnswer,
                                   [this] { given_up_is_denial_ ? refuse(given_up_) : fail(given_up_); });
}

void Relay::refuse(const std::string& reason) {
  if (stage_ == Stage::Over) return;
  const std::string who = (!target_.host.empty() ? target_.host : target_.address.value_or(address_).str()) + ":" +
                          std::to_string(target_.port);
  if (kind_ == Kind::Http && received_ == 0)
    return answer_and_end(
        http_answer("403 Forbidden", "The network policy of this sandbox refuses " + who + ": " + reason + ".\n"),
        "deny", reason);
  if (kind_ == Kind::Tls && received_ == 0 && !client_tls_)
    return answer_and_end(std::string(kTlsDenied), "deny", reason);
  reset("deny", reason);
}

void Relay::fail(const std::string& reason) {
  if (stage_ == Stage::Over) return;
  if (kind_ == Kind::Http && received_ == 0)
    return answer_and_end(http_answer("502 Bad Gateway", "The gateway of this sandbox could not reach " + target_.host +
                                                             ": " + reason + ".\n"),
                          "fail", reason);
  reset("fail", reason);
}

void Relay::answer_and_end(std::string bytes, const char* verdict, const std::string& reason) {
  const std::string what = reason;
  server_watch_.reset();
  server_.reset();
  raw_.clear();
  to_server_.clear();
  to_client_ += bytes;
  stage_ = Stage::Answer;
  sandbox_.log(record(verdict, what));
  expect_record(false);
  timer_ = std::make_unique<Timer>(loop_, kLastAnswer, [this] { finish("", ""); });
  flush_client();
  if (stage_ == Stage::Answer) update();
}

void Relay::reset(const char* verdict, const std::string& reason) {
  broken_ = true;
  finish(verdict, reason);
}

void Relay::expect_record(bool expected) {
  if (expected == std::exchange(expects_record_, expected)) return;
  expected ? sandbox_.expect_record() : sandbox_.expect_no_record();
}

NetworkRecord Relay::record(const char* verdict, const std::string& reason) const {
  NetworkRecord record;
  record.verdict = verdict;
  record.protocol = kind_ == Kind::Tls ? "tls" : kind_ == Kind::Http ? "http" : "tcp";
  record.host = target_.host;
  record.address = server_address_ ? server_address_ : target_.address;
  record.port = target_.port;
  record.sent = sent_ - logged_sent_;
  record.received = received_ - logged_received_;
  record.requests = requests_ - logged_requests_;
  record.http = http_;
  record.intercepted = client_tls_ != nullptr;
  record.duration = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began_);
  record.reason = reason;
  return record;
}

// With an empty verdict there is nothing (more) to tell.
void Relay::finish(const char* verdict, const std::string& reason) {
  if (stage_ == Stage::Over) return;
  const std::string what = reason;
  stage_ = Stage::Over;
  timer_.reset();
  client_watch_.reset();
  server_watch_.reset();
  if (*verdict) sandbox_.log(record(verdict, what));
  expect_record(false);
  if (!broken_) {
    end_by_reset(client_.get(), false);
    if (server_) end_by_reset(server_->fd(), false);
  }
  server_.reset();
  client_.reset();
  sandbox_.forget(*this);
}

}  // namespace dsec::egress
