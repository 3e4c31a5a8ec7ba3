#include "runners/egress/gateway/sandbox.h"

#include <ifaddrs.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "runners/egress/gateway/certificate_authority.h"
#include "runners/egress/gateway/datagrams.h"
#include "runners/egress/gateway/network_log.h"
#include "runners/egress/gateway/relay.h"
#include "runners/egress/gateway/socket_address.h"

namespace dsec::egress {
namespace {

using std::chrono::seconds;

// A name's addresses are kept so long, whatever its records say.
constexpr seconds kShortestPin{30}, kLongestPin{3600}, kFailurePin{3};
constexpr std::uint32_t kAnswerTtl = 60;
// At a time: each takes two sockets of the gateway, which serves others, too.
constexpr std::size_t kMostLookups = 128;
constexpr seconds kOwnAddressesFor{5};

}  // namespace

bool Host::owns(const IpAddress& address) {
  if (const Clock::time_point now = Clock::now(); own_.empty() || now - read_ > kOwnAddressesFor) {
    ifaddrs* list = nullptr;
    // Without the list nothing could be said to be somebody else's.
    if (::getifaddrs(&list) != 0) return true;
    own_.clear();
    for (const ifaddrs* each = list; each; each = each->ifa_next) {
      if (!each->ifa_addr) continue;
      const int family = each->ifa_addr->sa_family;
      if (family == AF_INET)
        own_.push_back(IpAddress::from_bytes(&reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, 4));
      else if (family == AF_INET6)
        own_.push_back(IpAddress::from_bytes(&reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr, 16));
    }
    ::freeifaddrs(list);
    std::erase_if(own_, [](const IpAddress& own) {
      const SpecialRange* special = special_range(own);
      return special && std::string_view(special->what) == "loopback";
    });
    read_ = now;
  }
  return std::find(own_.begin(), own_.end(), address) != own_.end();
}

SandboxState sandbox_state_from(const Json& json) {
  return {network_plan_from_json(json.value("plan", Json::object())),
          json.value("secrets", std::map<std::string, std::string>{}), json_string_or(json, "ca", "")};
}

Sandbox::Sandbox(Host& host, std::string id, SandboxState state, std::vector<UniqueFd> descriptors, UniqueFd ledger,
                 std::function<void()> ended)
    : host_(host),
      id_(std::move(id)),
      plan_(std::move(state.plan)),
      policy_(plan_.current()),
      secrets_(std::move(state.secrets)),
      descriptors_(std::move(descriptors)),
      log_(std::make_unique<NetworkLog>(descriptor(kLogFile), id_)),
      ledger_(std::move(ledger)) {
  log_->lose(std::exchange(ledger_.counters().unlogged, 0));
  std::uint32_t number = 0;
  for (const std::string& name : ledger_.names()) names_[name].number = ++number;
  if (plan_.intercept_tls)
    authority_ = std::make_unique<CertificateAuthority>(state.ca.empty() ? CertificateAuthority::make(id_) : state.ca);
  datagrams_ = std::make_unique<Datagrams>(*this);
  listener_ =
      std::make_unique<Watch>(host_.loop, descriptor(kTcpListener), EPOLLIN, [this](std::uint32_t) { accept(); });
  init_ = std::make_unique<Watch>(host_.loop, descriptor(kInitPidfd), EPOLLIN,
                                  [ended = std::move(ended)](std::uint32_t) { ended(); });
}

Sandbox::~Sandbox() {
  cut_all("the sandbox ended");
  datagrams_.reset();
  relays_.clear();
}

void Sandbox::accept() {
  // Not all at once: others wait, too.
  for (int i = 0; i < 64; ++i) {
    SocketAddress peer;
    UniqueFd client(::accept4(descriptor(kTcpListener), peer.data(), peer.room(), SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      // It stays in the queue, and asking again at once would only burn the processor.
      listener_->want(0);
      accept_again_ =
          std::make_unique<Timer>(host_.loop, std::chrono::milliseconds(100), [this] { listener_->want(EPOLLIN); });
      return;
    }
    SocketAddress wanted;
    if (::getsockname(client.get(), wanted.data(), wanted.room()) != 0) continue;
    relays_.push_back(std::make_unique<Relay>(*this, std::move(client), wanted.address(), wanted.port()));
    relays_.back()->start();
  }
}

void Sandbox::forget(Relay& relay) {
  host_.loop.later([this, alive = std::weak_ptr<bool>(alive_), &relay] {
    if (alive.lock()) relays_.remove_if([&](const auto& each) { return each.get() == &relay; });
  });
}

std::size_t Sandbox::open() const { return relays_.size() + datagrams_->size(); }

void Sandbox::replace(NetworkPlan plan, std::map<std::string, std::string> secrets) {
  // What the sandbox trusts was settled when it was made.
  plan.intercept_tls = plan_.intercept_tls;
  plan_ = std::move(plan);
  policy_ = plan_.current();
  // The caller may not have what the first one had in its environment.
  secrets.merge(secrets_);
  secrets_ = std::move(secrets);
  for (const auto& relay : relays_) relay->check();
  datagrams_->check();
}

void Sandbox::cut_all(const std::string& reason) {
  for (const auto& relay : relays_) relay->cut(reason);
  datagrams_->cut(reason);
}

Json Sandbox::state() const {
  return {{"plan", to_json(plan_)}, {"secrets", secrets_}, {"ca", authority_ ? authority_->pem() : ""}};
}

std::string Sandbox::ca_certificate() const { return authority_ ? authority_->certificate_pem() : ""; }

std::optional<std::string> Sandbox::secret(const HeaderSecret& secret) const {
  const auto found = secrets_.find(secret.secret);
  return found == secrets_.end() ? std::nullopt : std::optional(secret.prefix + found->second);
}

void Sandbox::resolve(const std::string& name, Resolved done) {
  // Under a rule for any name a sandbox could make them up for ever.
  const auto known = names_.find(name);
  if (names_.size() >= kMostNames && known == names_.end()) return done({DnsCode::Refused, {}, 0});
  if (known != names_.end() && !known->second.asked && Clock::now() < known->second.valid_until)
    return done(known->second.resolution);
  const bool asked = known != names_.end() && known->second.asked;
  if (!asked && lookups_ >= kMostLookups) return done({DnsCode::Refused, {}, 0});
  Name& entry = names_[name];
  entry.waiting.push_back(std::move(done));
  if (asked) return;
  entry.asked = true;
  ++lookups_;
  host_.resolver.resolve(name, [this, name, alive = std::weak_ptr<bool>(alive_)](const Resolution& resolution) {
    if (!alive.lock()) return;
    Name& answered = names_[name];
    answered.asked = answered.told = false;
    --lookups_;
    answered.resolution = resolution;
    const seconds ttl = resolution.addresses.empty()
                            ? kFailurePin
                            : std::clamp(seconds(resolution.ttl_seconds), kShortestPin, kLongestPin);
    answered.valid_until = Clock::now() + ttl;
    const std::vector<Resolved> waiting = std::move(answered.waiting);
    answered.waiting.clear();
    for (const Resolved& each : waiting) each(resolution);
  });
}

std::optional<IpAddress> Sandbox::address_of(const std::string& name, bool four) {
  Name& entry = names_[name];
  if (entry.number == 0) {
    if (ledger_.names().size() + 1 >= kMostNames || !ledger_.add(name)) return std::nullopt;
    entry.number = static_cast<std::uint32_t>(ledger_.names().size());
  }
  if (four) return IpAddress::v4(kNamesV4 + entry.number);
  IpAddress address = *IpAddress::parse(kNamesV6);
  for (int i = 0; i < 4; ++i) address.bytes[15 - i] = static_cast<std::uint8_t>(entry.number >> 8 * i);
  return address;
}

std::optional<std::string> Sandbox::name_at(const IpAddress& address) const {
  static const AddressRange four{IpAddress::v4(kNamesV4), 96 + 15}, six{*IpAddress::parse(kNamesV6), 96};
  std::uint32_t number = 0;
  if (four.contains(address))
    number = address.as_v4() - kNamesV4;
  else if (six.contains(address))
    for (int i = 12; i < 16; ++i) number = number << 8 | address.bytes[i];
  else
    return std::nullopt;
  return number == 0 || number > ledger_.names().size() ? std::string() : ledger_.names()[number - 1];
}

bool Sandbox::admit(std::string& reason) const {
  if (open() > policy_.connections) {
    reason = "the limit of " + std::to_string(policy_.connections) + " connections is reached";
    return false;
  }
  if (policy_.bytes && ledger_.counters().sent + ledger_.counters().received >= *policy_.bytes) {
    reason = "the limit of " + std::to_string(*policy_.bytes) + " bytes is reached";
    return false;
  }
  return true;
}

bool Sandbox::count(std::uint64_t sent, std::uint64_t received) {
  Ledger::Counters& counters = ledger_.counters();
  counters.sent += sent;
  counters.received += received;
  if (!policy_.bytes || counters.sent + counters.received < *policy_.bytes) return true;
  host_.loop.later([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock() && policy_.bytes) cut_all("the limit of " + std::to_string(*policy_.bytes) + " bytes is reached");
  });
  return false;
}

void Sandbox::log(const NetworkRecord& record) {
  if (!record.more)
    ++(std::string_view(record.verdict) == "deny" ? ledger_.counters().denied : ledger_.counters().allowed);
  Json json = {{"verdict", record.verdict}, {"protocol", record.protocol}};
  if (!plan_.phase.empty()) json["phase"] = plan_.phase;
  if (!record.host.empty()) json["host"] = record.host;
  if (record.address) json["address"] = record.address->str();
  if (record.port) json["port"] = record.port;
  if (record.sent) json["sent"] = record.sent;
  if (record.received) json["received"] = record.received;
  if (record.requests) json["requests"] = record.requests;
  if (!record.http.empty()) json["http"] = record.http;
  if (record.intercepted) json["intercepted"] = true;
  if (record.more) json["more"] = true;
  if (record.duration) json["duration_us"] = record.duration->count();
  if (!record.reason.empty()) json["reason"] = record.reason;
  log_->write(json, std::string_view(record.verdict) != "allow");
}

void Sandbox::answer(std::string_view query, std::function<void(std::string)> reply) {
  const std::optional<DnsQuestion> question = parse_dns_query(query);
  if (!question) return;
  NetworkRecord record;
  record.protocol = "dns";
  record.host = question->name;
  const std::string name = normal_host_name(question->name);
  NetworkVerdict verdict{false, "it is no host name"};
  if (!name.empty()) verdict = evaluate_name(policy_, name);
  record.reason = verdict.reason;
  if (!verdict.allowed) {
    // Nothing of the name leaves the host, so that no lookup can carry words out.
    log(record);
    return reply(dns_answer(*question, DnsCode::NoName, {}, 0));
  }
  // Other types have no use here, and HTTPS records would bring keys for encrypted ClientHellos.
  if (question->type != kDnsA && question->type != kDnsAaaa) return reply(dns_answer(*question, DnsCode::Ok, {}, 0));
  resolve(name, [this, question = *question, name, record, reply = std::move(reply)](const Resolution& result) mutable {
    record.verdict = result.addresses.empty() ? "fail" : "allow";
    if (result.addresses.empty())
      record.reason = result.code == DnsCode::NoName ? "there is no such name"
                      : result.code == DnsCode::Ok   ? "the name has no address"
                      // Of a name server it would be one more that has no answer.
                      : result.code == DnsCode::Refused ? "the sandbox looks up too many names"
                                                        : "no name server answered";
    // Both families of a name are one request to who looked it up, mostly for IPv4 first.
    const auto known = names_.find(name);
    const bool told = known != names_.end() && std::exchange(known->second.told, true);
    if (question.type == kDnsA || result.addresses.empty() || !told) log(record);
    if (result.addresses.empty()) return reply(dns_answer(question, result.code, {}, 0));
    const auto address = address_of(name, question.type == kDnsA);
    reply(address ? dns_answer(question, DnsCode::Ok, {*address}, kAnswerTtl)
                  : dns_answer(question, DnsCode::Refused, {}, 0));
  });
}

Json Sandbox::report() const {
  const Ledger::Counters& counters = ledger_.counters();
  return {{"connections", open()},       {"sent", counters.sent},     {"received", counters.received},
          {"allowed", counters.allowed}, {"denied", counters.denied}, {"names", ledger_.names().size()},
          {"plan", to_json(plan_)}};
}

}  // namespace dsec::egress
