#include "runners/egress/gateway/datagrams.h"

#include <sys/epoll.h>

#include <deque>

#include "core/base/error.h"
#include "runners/egress/gateway/sandbox.h"
#include "runners/egress/gateway/socket_address.h"
#include "runners/egress/gateway/udp_packet.h"

namespace dsec::egress {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kIdle{60'000}, kDenied{10'000};
constexpr std::size_t kMostWaiting = 8;             // datagrams of a flow
constexpr std::size_t kMostBytesWaiting = 4 << 20;  // of a sandbox: the gateway serves others, too

Endpoint endpoint_of(const SocketAddress& address) { return {address.address(), address.port()}; }

bool is_sandbox(const IpAddress& address) {
  static const IpAddress four = *IpAddress::parse(kSandboxV4), six = *IpAddress::parse(kSandboxV6);
  return address == four || address == six;
}
bool is_loopback(const IpAddress& address) {
  const SpecialRange* special = special_range(address);
  return special && std::string_view(special->what) == "loopback";
}

}  // namespace

/// One pair of addresses. A denied one stays for a while, so that who goes on trying is logged once.
class Datagrams::Flow {
 public:
  Flow(Datagrams& owner, Key key) : owner_(owner), key_(std::move(key)), began_(Clock::now()) {
    record_.protocol = "udp";
  }

  ~Flow() { (void)take_waiting(); }
  Flow(const Flow&) = delete;

  void begin() {
    Sandbox& sandbox = owner_.sandbox_;
    sandbox.expect_record();
    record_.port = key_.second.second;
    target_ = {"", key_.second.first, key_.second.second, Transport::Udp};
    if (const auto name = sandbox.name_at(key_.second.first)) {
      target_.host = *name;
      target_.address.reset();
    }
    record_.host = target_.host;
    record_.address = target_.address;
    NetworkVerdict verdict = verdict_now();
    if (verdict.allowed && !sandbox.admit(verdict.reason)) verdict.allowed = false;
    if (target_.host.empty() && !target_.address) verdict = {false, "the address stands for no name"};
    record_.reason = verdict.reason;
    if (!verdict.allowed) return refuse();
    if (target_.host.empty()) return dial({target_.address.value()});
    sandbox.resolve(target_.host, [this, alive = std::weak_ptr<bool>(alive_)](const Resolution& result) {
      if (alive.lock()) dial(result.addresses);
    });
  }

  void send(std::string_view data) {
    if (denied_) return;
    if (!socket_) {
      if (waiting_.size() == kMostWaiting || owner_.waiting_ + data.size() > kMostBytesWaiting) return;
      waiting_.emplace_back(data);
      owner_.waiting_ += data.size();
      return;
    }
    idle();
    // What does not fit is lost, as on any network.
    if (::send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL) < 0) return;
    record_.sent += data.size();
    owner_.sandbox_.count(data.size(), 0);
  }

  void check() {
    const NetworkPolicy& policy = owner_.sandbox_.policy();
    if (denied_) return end();  // it may be allowed now
    NetworkVerdict verdict = verdict_now();
    if (verdict.allowed && server_)
      verdict = evaluate_dial(policy, *server_, target_.port, Transport::Udp, owner_.sandbox_.host().owns(*server_));
    if (!verdict.allowed) cut("the policy was changed: " + verdict.reason);
  }

  void cut(const std::string& reason) {
    if (denied_) return end();
    record_.verdict = "deny";
    record_.reason = reason;
    end();
  }

 private:
  std::deque<std::string> take_waiting() {
    for (const std::string& data : waiting_) owner_.waiting_ -= data.size();
    return std::exchange(waiting_, {});
  }

  NetworkVerdict verdict_now() const {
    const NetworkPolicy& policy = owner_.sandbox_.policy();
    NetworkVerdict verdict = evaluate(policy, target_);
    if (verdict.allowed && policy.strict && !target_.host.empty())
      return {false, "strict: datagrams do not show whom they are for"};
    return verdict;
  }

  void dial(const std::vector<IpAddress>& addresses) {
    if (denied_ || ended_) return;
    Sandbox& sandbox = owner_.sandbox_;
    std::string why = "the name has no address";
    bool failed = addresses.empty();
    for (const IpAddress& address : addresses) {
      const NetworkVerdict verdict =
          evaluate_dial(sandbox.policy(), address, target_.port, Transport::Udp, sandbox.host().owns(address));
      if (!verdict.allowed) {
        why = verdict.reason;
        continue;
      }
      const SocketAddress to(address, target_.port);
      UniqueFd socket(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket || ::connect(socket.get(), to.data(), to.size()) != 0) {
        why = "connect: " + errno_text(errno);
        failed = true;
        continue;
      }
      socket_ = std::move(socket);
      server_ = record_.address = address;
      record_.verdict = "allow";
      watch_ =
          std::make_unique<Watch>(sandbox.host().loop, socket_.get(), EPOLLIN, [this](std::uint32_t) { receive(); });
      idle();
      for (const std::string& data : take_waiting()) send(data);
      return;
    }
    record_.reason = why;
    refuse(failed ? "fail" : "deny");
  }

  void receive() {
    char buffer[65536];
    for (int i = 0; i < 64; ++i) {
      const ssize_t got = ::recv(socket_.get(), buffer, sizeof buffer, 0);
      if (got < 0) return;
      idle();
      record_.received += static_cast<std::uint64_t>(got);
      owner_.send({key_.second.first, key_.second.second}, {key_.first.first, key_.first.second},
                  {buffer, static_cast<std::size_t>(got)});
      if (!owner_.sandbox_.count(0, static_cast<std::uint64_t>(got))) return;
    }
  }

  void refuse(const char* verdict = "deny") {
    denied_ = true;
    record_.verdict = verdict;
    owner_.sandbox_.log(record_);
    owner_.sandbox_.expect_no_record();
    timer_ = std::make_unique<Timer>(owner_.sandbox_.host().loop, kDenied, [this] { end(); });
  }
  void idle() {
    // Moving a timer for each packet would cost more than the packet: it looks at the time when it is due.
    last_ = Clock::now();
    if (!timer_) rest(kIdle);
  }
  void rest(milliseconds time) {
    timer_ = std::make_unique<Timer>(owner_.sandbox_.host().loop, time, [this] {
      const auto quiet = std::chrono::duration_cast<milliseconds>(Clock::now() - last_);
      quiet >= kIdle ? end() : rest(kIdle - quiet + milliseconds(1));
    });
  }
  void end() {
    if (ended_) return;
    ended_ = true;
    watch_.reset();
    if (!denied_) {
      record_.duration = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began_);
      owner_.sandbox_.log(record_);
      owner_.sandbox_.expect_no_record();
    }
    owner_.forget(key_);
  }

  Datagrams& owner_;
  const Key key_;
  const Clock::time_point began_;
  Clock::time_point last_;
  NetworkTarget target_;
  NetworkRecord record_;
  bool denied_ = false, ended_ = false;
  std::optional<IpAddress> server_;
  std::deque<std::string> waiting_;
  UniqueFd socket_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Timer> timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

Datagrams::Datagrams(Sandbox& sandbox) : sandbox_(sandbox) {
  watch_ = std::make_unique<Watch>(sandbox.host().loop, sandbox.descriptor(kUdpSocket), EPOLLIN,
                                   [this](std::uint32_t) { receive(); });
}
Datagrams::~Datagrams() = default;

void Datagrams::receive() {
  for (int i = 0; i < 64; ++i) {
    char buffer[65536];
    alignas(cmsghdr) char control[256];
    SocketAddress from;
    iovec part = {buffer, sizeof buffer};
    msghdr message = {};
    message.msg_name = from.data();
    message.msg_namelen = *from.room();
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(sandbox_.descriptor(kUdpSocket), &message, 0);
    if (got < 0) return;
    for (const cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of;
         part_of = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(part_of))) {
      const bool four = part_of->cmsg_level == SOL_IP && part_of->cmsg_type == IP_ORIGDSTADDR;
      const bool six = part_of->cmsg_level == SOL_IPV6 && part_of->cmsg_type == IPV6_ORIGDSTADDR;
      if (!four && !six) continue;
      SocketAddress to;
      std::memcpy(to.data(), CMSG_DATA(part_of), four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      take(endpoint_of(from), endpoint_of(to), {buffer, static_cast<std::size_t>(got)});
      break;
    }
  }
}

void Datagrams::take(const Endpoint& from, const Endpoint& to, std::string_view data) {
  // Ours inside: what comes here was not sent to the outside.
  if (is_sandbox(to.address) || is_loopback(to.address)) return;
  // All addresses are local to the sandbox: of a sender that it only claims to be, the answers would come here again.
  if (!is_sandbox(from.address) && !is_loopback(from.address)) return;
  if (to.port == kDnsPort) {
    sandbox_.answer(data, [this, from, to, alive = std::weak_ptr<bool>(alive_)](const std::string& reply) {
      if (alive.lock()) send(to, from, reply);
    });
    return;
  }
  const Key key{{from.address, from.port}, {to.address, to.port}};
  auto found = flows_.find(key);
  if (found == flows_.end()) {
    // Denied ones count as well: each costs memory for a while.
    if (flows_.size() >= sandbox_.policy().connections) return;
    found = flows_.emplace(key, std::make_unique<Flow>(*this, key)).first;
    found->second->begin();
  }
  found->second->send(data);
}

void Datagrams::send(const Endpoint& from, const Endpoint& to, std::string_view data) {
  const bool four = from.address.is_v4();
  const std::string packet = udp_packet(from, to, data);
  // The port of a raw socket's address is no port.
  const SocketAddress address(to.address, 0);
  ::sendto(sandbox_.descriptor(four ? kRawV4 : kRawV6), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           address.data(), address.size());
}

void Datagrams::forget(const Key& key) {
  sandbox_.host().loop.later([this, key, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) flows_.erase(key);
  });
}

void Datagrams::check() {
  for (const auto& [key, flow] : flows_) flow->check();
}

void Datagrams::cut(const std::string& reason) {
  for (const auto& [key, flow] : flows_) flow->cut(reason);
}

}  // namespace dsec::egress
