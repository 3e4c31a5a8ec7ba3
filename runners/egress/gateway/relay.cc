#include "runners/egress/gateway/relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "runners/egress/gateway/socket_address.h"
#include "runners/egress/gateway/tls_hello.h"

namespace dsec::egress {
namespace {

using std::chrono::milliseconds;
/// For the first bytes to come, for a connection to be made, for a last answer to be taken.
constexpr milliseconds kFirstBytes{15'000}, kConnect{8'000}, kLastAnswer{2'000};
constexpr std::size_t kBuffer = 128 << 10, kRead = 64 << 10;
constexpr unsigned kMostQueries = 64;
// Of a connection's requests so many are logged one by one, each up to this length.
constexpr std::size_t kMostLogged = 32, kLongestLogged = 200;

// What a client of TLS gets instead of a reset: its library says "access denied".
constexpr std::string_view kTlsDenied{"\x15\x03\x03\x00\x02\x02\x31", 7};

bool same_header(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return (x >= 'A' && x <= 'Z' ? x + 32 : x) == (y >= 'A' && y <= 'Z' ? y + 32 : y);
         });
}

void keep_alive(int socket) {
  const int on = 1, idle = 60, interval = 20, count = 4;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, SOL_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket, SOL_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket, SOL_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(socket, SOL_TCP, TCP_NODELAY, &on, sizeof on);
}

// With `on` the end of a connection is a reset, also when this process is killed: what was cut off must not look whole.
void end_by_reset(int socket, bool on) {
  const linger how = {on, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &how, sizeof how);
}

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
  const bool strict = sandbox_.policy().strict && !by_address_alone();
  if (strict && hello.encrypted) return refuse("strict: its ClientHello is encrypted");
  if (strict && hello.server_name.empty()) return refuse("strict: its TLS names no host");
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
  if (!consult_name(head.host, head.host_is_address, "Host")) return;
  decided_ = true;
  pump();
}

// Neither TLS nor HTTP.
void Relay::sniff_rest() {
  if (client_tls_) return refuse("intercepted: within its TLS it does not speak HTTP/1");
  kind_ = Kind::Raw;
  if (by_address_alone()) {
    decided_ = true;
    return pump();
  }
  if (target_.host.empty()) return refuse(rule_);
  if (sandbox_.policy().strict) return refuse("strict: it is neither TLS nor HTTP");
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

// A name (or address) that the bytes say. False when the connection is over.
bool Relay::consult_name(const std::string& name, bool is_address, const char* what) {
  const NetworkPolicy& policy = sandbox_.policy();
  if (!target_.host.empty()) {
    if (name == target_.host) return true;
    // An address that stands for the name is the name.
    if (is_address)
      if (const auto at = sandbox_.name_at(*IpAddress::parse(name)); at && *at == target_.host) return true;
    const std::string said = std::string(what) + " " + name + " for " + target_.host;
    if (policy.strict) return refuse("strict: " + said), false;
    if (inject_) return refuse(said), false;
    NetworkTarget other = target_;
    other.host = is_address ? "" : name;
    other.address = is_address ? IpAddress::parse(name) : std::nullopt;
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

void Relay::dial() {
  if (dialling_ || server_) return;
  dialling_ = true;
  server_port_ = target_.port;
  if (inject_) {
    const auto value = sandbox_.secret(*inject_);
    if (!value) return fail("the secret " + inject_->secret + " could not be read when the sandbox was attached");
    inject_name_ = inject_->header;
    header_ = inject_->header + ": " + *value + "\r\n";
    server_port_ = inject_->port;
  }
  if (dialled_.empty()) return dial_addresses({target_.address.value_or(address_)});
  sandbox_.resolve(dialled_, [this, alive = std::weak_ptr<bool>(alive_)](const Resolution& result) {
    if (!alive.lock() || stage_ == Stage::Over) return;
    trouble_ = result.code == DnsCode::NoName ? "there is no such name" : "the name could not be resolved";
    dial_addresses(result.addresses);
  });
}

void Relay::dial_addresses(std::vector<IpAddress> addresses) {
  std::string denied;
  for (const IpAddress& address : addresses) {
    const NetworkVerdict verdict =
        evaluate_dial(sandbox_.policy(), address, server_port_, Transport::Tcp, sandbox_.host().owns(address));
    if (verdict.allowed)
      addresses_.push_back(address);
    else
      denied = verdict.reason;
  }
  if (addresses_.empty() && !denied.empty()) return give_up(true, denied);
  std::reverse(addresses_.begin(), addresses_.end());
  dial_next();
}

void Relay::dial_next() {
  while (!addresses_.empty()) {
    const IpAddress address = addresses_.back();
    addresses_.pop_back();
    const SocketAddress to(address, server_port_);
    UniqueFd socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket || (::connect(socket.get(), to.data(), to.size()) != 0 && errno != EINPROGRESS)) {
      trouble_ = "connect to " + address.str() + ": " + errno_text(errno);
      continue;
    }
    server_address_ = address;
    server_.emplace(std::move(socket));
    keep_alive(server_->fd());
    end_by_reset(server_->fd(), true);
    return watch_connecting();
  }
  give_up(false, trouble_);
}

void Relay::watch_connecting() {
  server_watch_.reset();
  server_watch_ = std::make_unique<Watch>(loop_, server_->fd(), EPOLLOUT, [this](std::uint32_t) { on_connecting(); });
  timer_ = std::make_unique<Timer>(loop_, kConnect, [this] {
    trouble_ = "connect to " + server_address_->str() + ": " + errno_text(ETIMEDOUT);
    server_watch_.reset();
    server_.reset();
    dial_next();
  });
}

void Relay::on_connecting() {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(server_->fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    trouble_ = "connect to " + server_address_->str() + ": " + errno_text(error);
    server_watch_.reset();
    server_.reset();
    return dial_next();
  }
  if (inject_name_.empty() && !client_tls_) return connected();
  const std::string& host = client_tls_ ? tls_host_ : dialled_;
  try {
    if (!server_->tls()) server_->begin_tls(host);
  } catch (const Error& unable) {
    return fail(unable.message());
  }
  switch (server_->handshake()) {
    case ServerConnection::Io::Done:
      return connected();
    case ServerConnection::Io::Again:
      return server_watch_->want(server_->wants_to_write() ? EPOLLOUT : EPOLLIN);
    default:
      return give_up(false, "TLS with " + host + ": " + server_->error());
  }
}

void Relay::connected() {
  timer_.reset();
  dialling_ = false;
  server_watch_.reset();
  server_watch_ =
      std::make_unique<Watch>(loop_, server_->fd(), EPOLLIN, [this](std::uint32_t events) { on_server(events); });
  pump();
}

void Relay::on_client(std::uint32_t events) {
  if (stage_ == Stage::Over) return;
  if ((events & EPOLLERR) != 0) return finish(stage_ == Stage::Pass ? "allow" : "fail", "the sandbox broke it off");
  if ((events & (EPOLLIN | EPOLLHUP)) != 0 && !read_client()) return;
  pump();
}

void Relay::on_server(std::uint32_t events) {
  if (stage_ == Stage::Over) return;
  // In between a server that speaks first decides what this is: neither TLS nor HTTP.
  if (stage_ == Stage::Sniff && !decided_ && !client_tls_ && raw_.empty() && (events & EPOLLIN) != 0) {
    kind_ = Kind::Raw;
    decided_ = true;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !read_server()) return;
  pump();
}

// False when it is over.
bool Relay::read_client() {
  if (stage_ == Stage::Answer) {
    // Read away, so that the answer is not thrown away by a reset.
    char rest[4096];
    const ssize_t got = ::recv(client_.get(), rest, sizeof rest, 0);
    if (got > 0 || (got < 0 && errno == EAGAIN)) return true;
    finish("", "");
    return false;
  }
  while (raw_.size() + to_server_.size() < kBuffer && !client_ended_) {
    char buffer[kRead];
    const ssize_t got = ::recv(client_.get(), buffer, sizeof buffer, 0);
    if (got > 0) {
      const std::string_view bytes(buffer, static_cast<std::size_t>(got));
      if (client_tls_)
        client_tls_->feed(bytes);
      else
        raw_ += bytes;
      if (client_tls_ && !take_plain()) return false;
      if (bytes.size() < sizeof buffer) return true;
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got < 0) {
      if (stage_ == Stage::Pass)
        reset("allow", "the sandbox broke it off");
      else
        reset("fail", "the sandbox broke it off");
      return false;
    }
    client_ended_ = true;
  }
  return true;
}

// What its TLS carries, as far as there is room. False when it is over.
bool Relay::take_plain() {
  while (raw_.size() < kBuffer && !client_ended_) {
    switch (client_tls_->read(raw_)) {
      case ClientTls::Io::Done:
        break;
      case ClientTls::Io::Again:
        return true;
      case ClientTls::Io::End:
        client_ended_ = true;
        break;
      case ClientTls::Io::Failed:
        reset(stage_ == Stage::Pass ? "allow" : "fail",
              "intercepted: the sandbox ended its TLS: " + client_tls_->error());
        return false;
    }
  }
  return true;
}

// As send(2) does.
ssize_t Relay::put_client(std::string_view bytes) {
  if (!client_tls_) return ::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::size_t size = 0;
  const ClientTls::Io io = client_tls_->write(bytes, size);
  if (io == ClientTls::Io::Done) return static_cast<ssize_t>(size);
  errno = io == ClientTls::Io::Again ? EAGAIN : EPIPE;
  return -1;
}

// That no more comes.
void Relay::end_client() {
  if (std::exchange(told_client_, true)) return;
  if (client_tls_) client_tls_->end_writing();
  ::shutdown(client_.get(), SHUT_WR);
}

bool Relay::read_server() {
  if (!server_ || stage_ == Stage::Answer) return true;
  while (to_client_.size() < kBuffer && !server_ended_) {
    char buffer[kRead];
    std::size_t size = sizeof buffer;
    switch (server_->read(buffer, size)) {
      case ServerConnection::Io::Done:
        to_client_.append(buffer, size);
        received_ += size;
        if (!agreement_.empty()) hear_agreement({buffer, size});
        if (!sandbox_.count(0, size)) return true;
        if (size < sizeof buffer && !server_->tls()) return true;
        break;
      case ServerConnection::Io::Again:
        return true;
      case ServerConnection::Io::End:
        server_ended_ = true;
        break;
      case ServerConnection::Io::Failed: {
        const std::string error = server_->error();
        // What it sent before is still its answer.
        flush_client();
        reset("allow", "the server broke it off: " + error);
        return false;
      }
    }
  }
  return true;
}

// Whatever can go on now does.
void Relay::pump() {
  if (stage_ == Stage::Over) return;
  if (client_tls_ && stage_ != Stage::Answer && !take_plain()) return;
  if (stage_ == Stage::Answer) {
    flush_client();
    if (stage_ == Stage::Answer) update();
    return;
  }
  if (stage_ == Stage::Dns) {
    answer_dns();
    flush_client();
    if (stage_ == Stage::Over) return;
    if (client_ended_ && queries_ == 0 && to_client_.empty()) return finish("", "");
    return update();
  }
  if (stage_ == Stage::Sniff && !decided_) {
    if (!raw_.empty()) return sniff(), stage_ != Stage::Over && !decided_ ? update() : void();
    if (client_ended_ && !rule_.starts_with("no ") && !proxy_) return finish("allow", rule_);
    if (client_ended_) return finish("deny", "it said nothing that names a host");
    return update();
  }
  if (stage_ == Stage::Sniff && !given_up_.empty()) return given_up_is_denial_ ? refuse(given_up_) : fail(given_up_);
  if (stage_ == Stage::Sniff) {
    stage_ = Stage::Connect;
    if (!server_) timer_.reset();
  }
  if (stage_ == Stage::Connect) {
    if (!server_ && !dialling_) dial();
    if (stage_ != Stage::Connect) return;
    if (!server_ || dialling_) return update();
    stage_ = Stage::Pass;
    timer_.reset();
  }
  if (kind_ == Kind::Http && !opaque_) {
    take_requests();
  } else {
    to_server_ += raw_;
    raw_.clear();
  }
  if (stage_ != Stage::Pass) return;
  flush_server();
  if (stage_ != Stage::Pass) return;
  flush_client();
  // What TLS has decrypted already no event will tell of.
  while (stage_ == Stage::Pass && to_client_.empty() && server_->pending()) {
    if (!read_server()) return;
    flush_client();
  }
  if (stage_ != Stage::Pass) return;
  if (client_ended_ && raw_.empty() && to_server_.empty() && !told_server_) {
    told_server_ = true;
    server_->end_writing();
  }
  if (server_ended_ && to_client_.empty()) end_client();
  // After an answer that the server ended, a request could only be lost.
  if (told_client_ && (told_server_ || last_request_ || server_->tls())) return finish("allow", rule_);
  update();
}

// Requests from raw_ to to_server_, each looked at.
void Relay::take_requests() {
  while (!raw_.empty() && stage_ == Stage::Pass && to_server_.size() < kBuffer) {
    if (!body_.done()) {
      const std::size_t used = body_.consume(raw_);
      if (body_.bad()) return refuse("its request was not passed on: the length of its body cannot be read");
      to_server_.append(raw_, 0, used);
      raw_.erase(0, used);
      continue;
    }
    // Whether what follows is another request the server says first.
    if (!agreement_.empty()) return;
    if (last_request_) {
      raw_.clear();
      return;
    }
    const HttpHead head = parse_http_head(raw_);
    if (head.state == HttpHead::State::NeedMore) {
      if (client_ended_) raw_.clear();
      return;
    }
    if (head.state != HttpHead::State::Done)
      return refuse("a later request was not passed on: " + (head.fault.empty() ? "it is no HTTP" : head.fault));
    take_head(head, std::string_view(raw_).substr(0, head.size));
    if (stage_ != Stage::Pass) return;
    raw_.erase(0, head.size);
  }
}

// The first bytes of the answer to a request that would change the protocol.
void Relay::hear_agreement(std::string_view bytes) {
  answer_ += bytes.substr(0, agreement_.size() - answer_.size());
  if (answer_.size() < agreement_.size()) return;
  opaque_ = answer_ == agreement_ || (agreement_.ends_with('2') && answer_ == "HTTP/1.0 2");
  agreement_.clear();
}

void Relay::take_head(const HttpHead& head, std::string_view bytes) {
  if (requests_ > 0) {
    // The connection leads to one host; another name on it would only reach that one's server.
    const std::string& first = !target_.host.empty() ? target_.host : target_.address.value_or(address_).str();
    bool same = head.host == first;
    if (!same && head.host_is_address)
      if (const auto at = sandbox_.name_at(*IpAddress::parse(head.host))) same = *at == first;
    if (!same && !consult_name(head.host, head.host_is_address, "Host")) return;
  }
  note_request(head);
  body_ = HttpBody(head);
  const bool connect = head.method == "CONNECT";
  if (head.upgrade || connect) {
    // Which answer is its own would else be hard to say.
    if (requests_ > 1) return refuse("a later request was not passed on: it would change the protocol");
    if (!inject_name_.empty()) return refuse("a secret goes along for this host: it cannot be upgraded");
    agreement_ = connect ? "HTTP/1.1 2" : "HTTP/1.1 101";
  }
  // Of two hosts that a request names a server could take the other one.
  if (inject_name_.empty() && way_ != Way::Forward && !head.absolute) {
    to_server_ += bytes;
    return;
  }
  // One request at a time through the proxy: the next may be for another host.
  const bool forward = way_ == Way::Forward;
  last_request_ = forward;
  to_server_ += head.method + " ";
  if (head.absolute && origin_form(head)[0] != '/') to_server_ += "/";
  to_server_ += head.absolute ? origin_form(head) : std::string_view(head.target);
  to_server_ += bytes.find(" HTTP/1.0\r\n") < bytes.find('\n') ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n";
  if (head.absolute) {
    to_server_ += "Host: " + (head.host.find(':') != std::string::npos ? "[" + head.host + "]" : head.host);
    if (head.port && head.port != 80) to_server_ += ":" + std::to_string(head.port);
    to_server_ += "\r\n";
  }
  for (const auto& [name, value] : head.headers) {
    if (head.absolute && same_header(name, "Host")) continue;
    if (same_header(name, "Proxy-Connection") || same_header(name, "Proxy-Authorization")) continue;
    if (forward && agreement_.empty() && (same_header(name, "Connection") || same_header(name, "Keep-Alive"))) continue;
    if (!inject_name_.empty() && same_header(name, inject_name_)) continue;
    to_server_ += name + ": " + value + "\r\n";
  }
  to_server_ += header_;
  if (forward && agreement_.empty()) to_server_ += "Connection: close\r\n";
  to_server_ += "\r\n";
}

// What a query carries is nobody's business but the server's.
void Relay::note_request(const HttpHead& head) {
  ++requests_;
  if (http_.size() == kMostLogged) return;
  std::string text(head.absolute ? origin_form(head) : std::string_view(head.target));
  text = head.method + " " + text.substr(0, std::min(text.find_first_of("?#"), kLongestLogged));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  http_.push_back(std::move(text));
}

void Relay::flush_server() {
  std::size_t done = 0;
  while (done < to_server_.size()) {
    std::size_t size = 0;
    const auto io = server_->write(std::string_view(to_server_).substr(done), size);
    done += size;
    if (size) {
      sent_ += size;
      if (!sandbox_.count(size, 0)) break;
    }
    if (io == ServerConnection::Io::Again) break;
    if (io != ServerConnection::Io::Done) {
      const std::string error = server_->error();
      to_server_.clear();
      // It may have answered before it closed.
      if (!read_server()) return;
      flush_client();
      return reset("allow", "the server broke it off: " + error);
    }
  }
  to_server_.erase(0, done);
}

void Relay::flush_client() {
  std::size_t done = 0;
  while (done < to_client_.size()) {
    const ssize_t put = put_client(std::string_view(to_client_).substr(done));
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put < 0) {
      to_client_.clear();
      return finish(stage_ == Stage::Pass ? "allow" : "", rule_);
    }
    done += static_cast<std::size_t>(put);
  }
  to_client_.erase(0, done);
  if (stage_ == Stage::Answer && to_client_.empty()) end_client();
}

void Relay::answer_dns() {
  while (raw_.size() >= 2 && queries_ < kMostQueries) {
    const std::size_t length =
        static_cast<std::size_t>(static_cast<std::uint8_t>(raw_[0])) << 8 | static_cast<std::uint8_t>(raw_[1]);
    if (raw_.size() < length + 2) return;
    const std::string query = raw_.substr(2, length);
    raw_.erase(0, length + 2);
    if (!parse_dns_query(query)) return reset("deny", "what came to the name server's port is no query");
    ++queries_;
    sandbox_.answer(query, [this, alive = std::weak_ptr<bool>(alive_)](const std::string& reply) {
      if (!alive.lock() || stage_ != Stage::Dns) return;
      --queries_;
      to_client_ += static_cast<char>(reply.size() >> 8);
      to_client_ += static_cast<char>(reply.size());
      to_client_ += reply;
      loop_.later([this, alive] {
        if (alive.lock()) pump();
      });
    });
  }
}

// What to wait for.
void Relay::update() {
  std::uint32_t client = 0, server = 0;
  if (!to_client_.empty() || (client_tls_ && client_tls_->wants_to_write())) client |= EPOLLOUT;
  if (!client_ended_ && (raw_.size() + to_server_.size() < kBuffer || stage_ == Stage::Answer)) client |= EPOLLIN;
  // With both its directions ended there is nothing to wait for, and the kernel would go on telling of that.
  if (client_ended_ && told_client_) client_watch_.reset();
  if (client_watch_) client_watch_->want(client);
  if (server_ended_ && told_server_) server_watch_.reset();
  // No event tells of what has been decrypted, or could be.
  if (client_tls_ && stage_ == Stage::Pass && raw_.empty() && to_server_.empty() && client_tls_->pending())
    loop_.later([this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.lock()) pump();
    });
  // While it connects the watch is its own.
  if (!server_watch_ || dialling_ || !server_) return;
  if (!to_server_.empty()) server |= EPOLLOUT;
  if (!server_ended_ && to_client_.size() < kBuffer) {
    const bool may_decide = stage_ != Stage::Sniff || decided_ || raw_.empty();
    if (may_decide) server |= EPOLLIN;
  }
  server_watch_->want(server);
}

void Relay::check() {
  if (stage_ == Stage::Over || stage_ == Stage::Answer || stage_ == Stage::Dns || proxy_) return;
  const NetworkPolicy& policy = sandbox_.policy();
  const HeaderSecret* secret = inject_ ? injection_for(policy, target_.host) : nullptr;
  const bool injected = inject_ != nullptr;
  // The policy it pointed into is gone.
  inject_ = secret;
  NetworkVerdict verdict = evaluate(policy, target_);
  if (also_named_ && verdict.allowed) verdict = evaluate(policy, *also_named_);
  if (injected) verdict.allowed = secret && !verdict.reason.starts_with("deny");
  // An address that nothing has named yet waits for a name.
  if (stage_ == Stage::Sniff && !decided_ && target_.host.empty() && !verdict.reason.starts_with("deny")) return;
  if (verdict.allowed && server_address_)
    verdict =
        evaluate_dial(policy, *server_address_, server_port_, Transport::Tcp, sandbox_.host().owns(*server_address_));
  if (!verdict.allowed) cut("the policy was changed: " + verdict.reason);
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
  record.sent = sent_;
  record.received = received_;
  record.requests = requests_;
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
