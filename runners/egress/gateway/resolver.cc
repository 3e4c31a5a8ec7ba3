#include "runners/egress/gateway/resolver.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/egress/gateway/socket_address.h"

namespace dsec::egress {
namespace {

constexpr const char* kResolvConf = "/etc/resolv.conf";
constexpr std::chrono::milliseconds kAttempt{2000};
// Some name servers never answer for one of the families.
constexpr std::chrono::milliseconds kOtherFamily{500};
constexpr std::size_t kRounds = 2, kMostServers = 3;

std::uint16_t random_id() {
  std::uint16_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != sizeof id) throw system_error("read random bytes");
  return id;
}

}  // namespace

std::optional<Endpoint> parse_endpoint(const std::string& text, std::uint16_t port) {
  if (const auto address = IpAddress::parse(text)) return Endpoint{*address, port};
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto address = IpAddress::parse(host);
  Endpoint endpoint{address.value_or(IpAddress{}), 0};
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), endpoint.port);
  if (!address || error != std::errc() || end != text.data() + text.size() || endpoint.port == 0) return std::nullopt;
  return endpoint;
}

/// One question of one type to one server after the other.
class Resolver::Query {
 public:
  Query(Loop& loop, std::vector<Endpoint> servers, std::string name, std::uint16_t type,
        std::function<void(const DnsReply&)> done)
      : loop_(loop), servers_(std::move(servers)), name_(std::move(name)), type_(type), done_(std::move(done)) {
    timer_.emplace(loop_, std::chrono::milliseconds(0), [this] { attempt(); });
  }

 private:
  void attempt() {
    close();
    if (servers_.empty() || tries_ == servers_.size() * kRounds) {
      DnsReply failed;
      failed.code = DnsCode::ServerFailure;
      return finish(failed);
    }
    server_ = servers_[tries_++ % servers_.size()];
    open(SOCK_DGRAM);
  }

  void open(int type) {
    id_ = random_id();
    stream_ = type == SOCK_STREAM;
    out_ = dns_query(id_, name_, type_);
    in_.clear();
    if (stream_) out_.insert(0, {static_cast<char>(out_.size() >> 8), static_cast<char>(out_.size())});
    const SocketAddress to(server_.address, server_.port);
    socket_.reset(::socket(to.family(), type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_ || (::connect(socket_.get(), to.data(), to.size()) != 0 && errno != EINPROGRESS)) return next();
    watch_.emplace(loop_, socket_.get(), EPOLLOUT, [this](std::uint32_t) { on_event(); });
    timer_.emplace(loop_, kAttempt, [this] { attempt(); });
  }

  // Not within the callers' frames: they may be the watch's.
  void next() {
    timer_.emplace(loop_, std::chrono::milliseconds(0), [this] { attempt(); });
  }

  void on_event() {
    while (!out_.empty()) {
      const ssize_t sent = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) return next();
      out_.erase(0, static_cast<std::size_t>(sent));
      if (out_.empty()) watch_->want(EPOLLIN);
    }
    char buffer[65536];
    const ssize_t got = ::recv(socket_.get(), buffer, sizeof buffer, 0);
    if (got < 0) return errno == EAGAIN ? void() : next();
    if (!stream_) return on_message({buffer, static_cast<std::size_t>(got)});
    if (got == 0) return next();
    in_.append(buffer, static_cast<std::size_t>(got));
    if (in_.size() < 2) return;
    const std::size_t length =
        static_cast<std::size_t>(static_cast<std::uint8_t>(in_[0])) << 8 | static_cast<std::uint8_t>(in_[1]);
    if (in_.size() >= length + 2) on_message(std::string_view(in_).substr(2, length));
  }

  void on_message(std::string_view message) {
    const std::optional<DnsReply> reply = parse_dns_reply(message, id_, name_, type_);
    // Over UDP anybody may have sent it: the right one may still come.
    if (!reply) return stream_ ? next() : void();
    if (reply->truncated && !stream_) {
      timer_.emplace(loop_, std::chrono::milliseconds(0), [this] {
        close();
        open(SOCK_STREAM);
      });
      return;
    }
    // That this server cannot answer does not mean that the next one cannot.
    if (reply->code != DnsCode::Ok && reply->code != DnsCode::NoName) return next();
    finish(*reply);
  }

  void close() {
    watch_.reset();
    socket_.reset();
  }

  void finish(const DnsReply& reply) {
    close();
    timer_.reset();
    const auto done = done_;  // which ends us
    done(reply);
  }

  Loop& loop_;
  const std::vector<Endpoint> servers_;
  const std::string name_;
  const std::uint16_t type_;
  const std::function<void(const DnsReply&)> done_;
  std::size_t tries_ = 0;
  Endpoint server_;
  std::uint16_t id_ = 0;
  bool stream_ = false;
  std::string out_, in_;
  UniqueFd socket_;
  std::optional<Watch> watch_;
  std::optional<Timer> timer_;
};

/// Both families of one name.
class Resolver::Lookup {
 public:
  Lookup(Resolver& owner, const std::string& name, Done done) : owner_(owner), done_(std::move(done)) {
    const auto ask = [&](std::uint16_t type, std::optional<DnsReply>& into) {
      return std::make_unique<Query>(owner.loop_, owner.servers(), name, type, [this, &into](const DnsReply& reply) {
        into = reply;
        if (replies_[0] && replies_[1]) return end();
        if (!reply.addresses.empty()) patience_.emplace(owner_.loop_, kOtherFamily, [this] { end(); });
      });
    };
    queries_[0] = ask(kDnsA, replies_[0]);
    queries_[1] = ask(kDnsAaaa, replies_[1]);
  }

 private:
  // Not within the callers' frames: they are the queries' or the timer's.
  void end() {
    if (!std::exchange(ending_, true)) owner_.loop_.later([this] { finish(); });
  }

  void finish() {
    Resolution result;
    result.ttl_seconds = 0xffffffff;
    result.code = DnsCode::ServerFailure;
    for (const auto& reply : replies_) {
      if (!reply) continue;
      if (reply->code == DnsCode::Ok || (reply->code == DnsCode::NoName && result.code != DnsCode::Ok))
        result.code = reply->code;
      result.addresses.insert(result.addresses.end(), reply->addresses.begin(), reply->addresses.end());
      if (!reply->addresses.empty()) result.ttl_seconds = std::min(result.ttl_seconds, reply->ttl_seconds);
    }
    if (result.addresses.empty()) result.ttl_seconds = 0;
    const Done done = std::move(done_);
    owner_.lookups_.remove_if([this](const auto& lookup) { return lookup.get() == this; });
    done(result);
  }

  Resolver& owner_;
  Done done_;
  std::array<std::optional<DnsReply>, 2> replies_;
  std::array<std::unique_ptr<Query>, 2> queries_;
  std::optional<Timer> patience_;
  bool ending_ = false;
};

Resolver::Resolver(Loop& loop, std::vector<Endpoint> servers) : loop_(loop), fixed_(std::move(servers)) {}
Resolver::~Resolver() = default;

void Resolver::resolve(const std::string& name, Done done) {
  lookups_.push_back(std::make_unique<Lookup>(*this, name, std::move(done)));
}

const std::vector<Endpoint>& Resolver::servers() {
  if (!fixed_.empty()) return fixed_;
  struct stat info = {};
  if (::stat(kResolvConf, &info) != 0) return read_;
  if (info.st_mtim.tv_sec == read_time_.tv_sec && info.st_mtim.tv_nsec == read_time_.tv_nsec) return read_;
  std::vector<Endpoint> found;
  try {
    std::istringstream lines(read_file(kResolvConf, 1 << 20));
    for (std::string line; std::getline(lines, line) && found.size() < kMostServers;) {
      std::istringstream words(line);
      std::string word, server;
      if (words >> word >> server && word == "nameserver")
        if (const auto endpoint = parse_endpoint(server, 53)) found.push_back(*endpoint);
    }
  } catch (const Error&) {
    return read_;  // being replaced: what was read before holds
  }
  read_ = std::move(found);
  read_time_ = info.st_mtim;
  return read_;
}

}  // namespace dsec::egress
