#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/model/network_policy.h"
#include "runners/egress/gateway/ledger.h"
#include "runners/egress/gateway/loop.h"
#include "runners/egress/gateway/resolver.h"
#include "runners/egress/protocol.h"

namespace dsec::egress {

class CertificateAuthority;
class Datagrams;
class NetworkLog;
class Relay;

/// What all sandboxes of a gateway share.
class Host {
 public:
  Host(Loop& loop_of_all, Resolver& resolver_of_all) : loop(loop_of_all), resolver(resolver_of_all) {}
  Loop& loop;
  Resolver& resolver;
  /// Whether an address is one of this host's own; loopback does not count, being special anyhow.
  bool owns(const IpAddress& address);

 private:
  std::vector<IpAddress> own_;
  Clock::time_point read_;
};

/// What a sandbox is served by, and all that another process needs to go on serving it.
struct SandboxState {
  NetworkPlan plan;
  std::map<std::string, std::string> secrets;  ///< by their text in the plan
  std::string ca;  ///< PEM of its certificate authority, with the key; empty: none yet, or TLS is not intercepted
};
SandboxState sandbox_state_from(const Json& json);

/// One line of a sandbox's network log; empty and zero members are left out.
struct NetworkRecord {
  const char* verdict = "deny";  ///< "allow", "deny", "fail": allowed, but it could not be done
  const char* protocol = "tcp";  ///< "dns", "tcp", "tls", "http", "udp"
  std::string host, reason;
  std::optional<IpAddress> address;  ///< that the gateway connected to, else the one the sandbox named
  std::uint16_t port = 0;
  std::uint64_t sent = 0, received = 0, requests = 0;
  std::vector<std::string> http;  ///< "GET /path", of each request
  bool intercepted = false;
  bool more = false;  ///< of a connection that goes on, and has another record later
  std::optional<std::chrono::microseconds> duration;
};

/// The sandbox side of the gateway: its sockets, its policy, the names it may use and what it has open.
class Sandbox {
 public:
  using Resolved = std::function<void(const Resolution&)>;

  /// `ledger`: of the process that served it before; nothing: none has.
  Sandbox(Host& host, std::string id, SandboxState state, std::vector<UniqueFd> descriptors, UniqueFd ledger,
          std::function<void()> ended);
  ~Sandbox();

  Host& host() { return host_; }
  const std::string& id() const { return id_; }
  const NetworkPolicy& policy() const { return policy_; }
  const NetworkPlan& plan() const { return plan_; }
  /// Cuts what is open and no longer allowed. Secrets come along, as the new policy may name others.
  void replace(NetworkPlan plan, std::map<std::string, std::string> secrets);
  int descriptor(AttachDescriptor which) const { return descriptors_[which].get(); }

  Json state() const;
  int ledger() const { return ledger_.file(); }
  /// PEM, for the sandbox; empty when its TLS is not intercepted.
  std::string ca_certificate() const;
  /// Null when TLS is not intercepted.
  CertificateAuthority* authority() const { return authority_.get(); }

  /// Of a secret's text as the policy has it; empty when the attaching dsec could not read it.
  std::optional<std::string> secret(const HeaderSecret& secret) const;

  /// Addresses of an allowed name, pinned for as long as they were said to be valid, within bounds.
  void resolve(const std::string& name, Resolved done);
  /// The address that stands for a name inside; empty when there are too many names.
  std::optional<IpAddress> address_of(const std::string& name, bool four);
  /// The name behind such an address. Null: none; empty: it is in the range, but stands for nothing.
  std::optional<std::string> name_at(const IpAddress& address) const;

  /// False when a limit is reached, with its reason.
  bool admit(std::string& reason) const;
  /// Counts bytes that passed; false when that was too much, and everything was or will be cut.
  bool count(std::uint64_t sent, std::uint64_t received);

  void log(const NetworkRecord& record);
  /// A record is to come, or has come or will not: of those that are to come when the gateway dies the next one tells.
  void expect_record() { ++ledger_.counters().unlogged; }
  void expect_no_record() { --ledger_.counters().unlogged; }
  /// Answers one DNS query, perhaps later. `reply` is not called for what is no query.
  void answer(std::string_view query, std::function<void(std::string)> reply);

  /// Ends a relay after the present callbacks.
  void forget(Relay& relay);
  std::size_t open() const;
  Json report() const;

 private:
  struct Name {
    std::uint32_t number = 0;  ///< its place among addresses; 0: not asked for yet
    Resolution resolution;
    Clock::time_point valid_until;
    bool asked = false;
    bool told = false;  ///< a record tells of this resolution
    std::vector<Resolved> waiting;
  };
  void accept();
  void cut_all(const std::string& reason);

  Host& host_;
  const std::string id_;
  NetworkPlan plan_;
  NetworkPolicy policy_;
  std::map<std::string, std::string> secrets_;
  std::vector<UniqueFd> descriptors_;
  std::unique_ptr<NetworkLog> log_;
  std::unique_ptr<CertificateAuthority> authority_;
  std::unordered_map<std::string, Name> names_;
  std::size_t lookups_ = 0;  ///< of names that are being asked for
  std::list<std::unique_ptr<Relay>> relays_;
  std::unique_ptr<Datagrams> datagrams_;
  std::unique_ptr<Watch> listener_, init_;
  std::unique_ptr<Timer> accept_again_;
  Ledger ledger_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dsec::egress
