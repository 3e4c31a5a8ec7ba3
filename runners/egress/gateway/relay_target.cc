#include "runners/egress/gateway/relay.h"

#include <algorithm>

#include "core/base/error.h"
#include "runners/egress/gateway/tls_hello.h"

namespace dsec::egress {
// Whom a connection is for.

// What can be said before the first byte. False when that was all.
bool Relay::consult_address() {
  const NetworkPolicy& policy = sandbox_.policy();
  if (!target_.host.empty()) {
    const HeaderSecret* secret = injection_for(policy, target_.host);
    const bool plain = way_ != Way::Tunnel && target_.port == 80;
    if (secret && !plain && (!sandbox_.authority() || secret->port != target_.port)) secret = nullptr;
    NetworkVerdict verdict = evaluate(policy, target_);
    // A deny rule counts for it, too.
    if (secret && !verdict.reason.starts_with("deny")) {
      verdict = {true, "inject " + secret->host};
      inject_ = secret;
    }
    if (!verdict.allowed) return refuse(verdict.reason), false;
    rule_ = verdict.reason;
    dialled_ = target_.host;
    // A server may speak first, but not one for which a secret waits, nor where the client has to name the host.
    if (!policy.strict && !inject_) dial();
    return stage_ != Stage::Over;
  }
  const NetworkVerdict verdict = evaluate(policy, target_);
  if (verdict.allowed) {
    allowed_by_address_ = true;
    rule_ = verdict.reason;
    if (!must_sniff()) {
      decided_ = true;
      kind_ = Kind::Raw;
    }
    dial();
    return stage_ != Stage::Over;
  }
  if (verdict.reason.starts_with("deny")) return refuse(verdict.reason), false;
  // A name in its first bytes may allow it, if any name can.
  const bool names =
      !policy.inject.empty() || std::any_of(policy.allow.begin(), policy.allow.end(), [&](const NetworkRule& rule) {
        return rule.kind != NetworkRule::Kind::Address && rule.transport == Transport::Tcp &&
               rule.covers_port(target_.port);
      });
  if (!names) return refuse(verdict.reason), false;
  rule_ = verdict.reason;
  return true;
}

// Where an address is allowed, names count only when some are denied.
bool Relay::must_sniff() const {
  if (sandbox_.authority()) return true;
  const auto& deny = sandbox_.policy().deny;
  return std::any_of(deny.begin(), deny.end(),
                     [](const NetworkRule& rule) { return rule.kind != NetworkRule::Kind::Address; });
}

bool Relay::by_address_alone() const { return allowed_by_address_; }

// It does not show whom it is for. True when the policy is strict, and so it is over.
bool Relay::hides(const std::string& why) {
  if (by_address_alone()) return false;
  hidden_ = why;
  if (sandbox_.policy().strict) refuse("strict: " + why);
  return sandbox_.policy().strict;
}

void Relay::sniff() {
  if (raw_.empty() || stage_ != Stage::Sniff) return;
  if (proxy_) return sniff_proxy();
  if (raw_[0] == 22 && !client_tls_) return sniff_tls();
  sniff_http();
}

void Relay::sniff_tls() {
  const TlsHello hello = parse_tls_hello(raw_);
  if (hello.state == TlsHello::State::NeedMore) return;
  if (hello.state == TlsHello::State::NotTls) return sniff_rest();
  kind_ = Kind::Tls;
  if (hello.state == TlsHello::State::Bad) return refuse("its TLS ClientHello cannot be read");
  if (hello.encrypted && hides("its ClientHello is encrypted")) return;
  if (hello.server_name.empty() && hides("its TLS names no host")) return;
  if (!hello.server_name.empty() && !consult_name(hello.server_name, false, "SNI")) return;
  if (hello.server_name.empty() && target_.host.empty() && !by_address_alone()) return refuse(rule_);
  if (sandbox_.authority()) return intercept(hello.server_name);
  if (inject_) return refuse("a secret goes along for this host: speak plain HTTP to it");
  decided_ = true;
  pump();
}

// Whom the ClientHello names is allowed. From here on the sandbox talks to us, and the server has to prove who it is
// before it gets anything.
void Relay::intercept(const std::string& server_name) {
  if (!server_name.empty() && !target_.host.empty() && server_name != target_.host)
    return refuse("intercepted: SNI " + server_name + " for " + target_.host);
  tls_host_ = !server_name.empty()    ? server_name
              : !target_.host.empty() ? target_.host
                                      : target_.address.value_or(address_).str();
  try {
    client_tls_ = std::make_unique<ClientTls>(client_.get(), *sandbox_.authority(), tls_host_);
  } catch (const Error& error) {
    return fail(error.message());
  }
  client_tls_->feed(std::exchange(raw_, {}));
  if (server_ && !dialling_) {
    dialling_ = true;
    watch_connecting();
  }
  pump();
}

void Relay::sniff_http() {
  const HttpHead head = parse_http_head(raw_);
  if (head.state == HttpHead::State::NeedMore) return;
  if (head.state == HttpHead::State::NotHttp) return sniff_rest();
  kind_ = Kind::Http;
  if (head.state == HttpHead::State::Bad) return refuse("its request was not passed on: " + head.fault);
  if (!consult_host(head)) return;
  decided_ = true;
  pump();
}

// Neither TLS nor HTTP.
void Relay::sniff_rest() {
  if (client_tls_) return refuse("intercepted: within its TLS it does not speak HTTP/1");
  kind_ = Kind::Raw;
  first_line_.emplace();
  if (by_address_alone()) {
    decided_ = true;
    return pump();
  }
  if (target_.host.empty()) return refuse(rule_);
  if (hides("it is neither TLS nor HTTP")) return;
  if (inject_) return refuse("a secret goes along for this host: speak plain HTTP to it");
  decided_ = true;
  pump();
}

void Relay::sniff_proxy() {
  const HttpHead head = parse_http_head(raw_);
  if (head.state == HttpHead::State::NeedMore) return;
  kind_ = Kind::Http;
  if (head.state == HttpHead::State::NotHttp) return reset("deny", "the proxy speaks HTTP only");
  if (head.state == HttpHead::State::Bad) return refuse("its request was not passed on: " + head.fault);
  proxy_ = false;
  const bool tunnel = head.method == "CONNECT";
  if (!tunnel && !head.absolute)
    return answer_and_end(
        http_answer("400 Bad Request", "This is the proxy of a sandbox; it wants CONNECT or http:// URLs.\n"), "deny",
        "it is no request for a proxy");
  target_.host = head.host_is_address ? "" : head.host;
  target_.address = head.host_is_address ? IpAddress::parse(head.host) : std::nullopt;
  target_.port = head.port ? head.port : 80;
  // The names' own addresses are no literals.
  if (target_.address)
    if (const auto name = sandbox_.name_at(*target_.address)) {
      target_.host = *name;
      target_.address.reset();
      if (name->empty()) return refuse("the address stands for no name");
    }
  way_ = tunnel ? Way::Tunnel : Way::Forward;
  if (tunnel) {
    raw_.erase(0, head.size);
    if (target_.port == kDnsPort) return refuse("names are asked for at the gateway itself");
    if (!consult_address() || stage_ != Stage::Sniff) return;
    // What comes through it may be of any kind.
    if (kind_ == Kind::Http) kind_ = Kind::Unknown;
    to_client_ += "HTTP/1.1 200 Connection established\r\n\r\n";
    flush_client();
    return pump();
  }
  if (!consult_address()) return;
  kind_ = Kind::Http;
  if (target_.host.empty() && !allowed_by_address_) return refuse(rule_);
  decided_ = true;
  pump();
}

// Of a server that is asked to pass a request on, the port that it would use counts.
bool Relay::consult_host(const HttpHead& head) {
  const bool passed_on = head.absolute || head.method == "CONNECT";
  return consult_name(head.host, head.host_is_address, "Host", passed_on ? head.port : std::uint16_t{0});
}

// A name (or address) that the bytes say. False when the connection is over.
bool Relay::consult_name(const std::string& name, bool is_address, const char* what, std::uint16_t port) {
  const NetworkPolicy& policy = sandbox_.policy();
  if (!target_.host.empty()) {
    if (name == target_.host) return true;
    // An address that stands for the name is the name.
    if (is_address)
      if (const auto at = sandbox_.name_at(*IpAddress::parse(name)); at && *at == target_.host) return true;
    const std::string said = std::string(what) + " " + name + " for " + target_.host;
    if (hides(said)) return false;
    if (inject_) return refuse(said), false;
    NetworkTarget other = target_;
    other.host = is_address ? "" : name;
    if (port) other.port = port;
    if (is_address || !by_address_alone()) other.address = is_address ? IpAddress::parse(name) : std::nullopt;
    if (const NetworkVerdict verdict = evaluate(policy, other); !verdict.allowed)
      return refuse(said + ": " + verdict.reason), false;
    also_named_ = other;
    return true;
  }
  NetworkTarget both = target_;
  if (!is_address) both.host = name;
  const NetworkVerdict verdict = evaluate(policy, both);
  if (const HeaderSecret* secret =
          kind_ == Kind::Http && target_.port == 80 && !is_address ? injection_for(policy, name) : nullptr;
      secret && !client_tls_ && !verdict.reason.starts_with("deny")) {
    inject_ = secret;
    rule_ = "inject " + secret->host;
    allowed_by_address_ = false;
    target_.host = dialled_ = name;
    return true;
  }
  if (!verdict.allowed) {
    target_.host = both.host;
    return refuse(verdict.reason), false;
  }
  rule_ = verdict.reason;
  target_.host = both.host;
  // By the gateway's own resolution, unless the address itself is allowed.
  if (!allowed_by_address_) dialled_ = name;
  return true;
}

}  // namespace dsec::egress
