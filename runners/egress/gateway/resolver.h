#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runners/egress/gateway/dns_message.h"
#include "runners/egress/gateway/loop.h"

namespace dsec::egress {

struct Endpoint {
  IpAddress address;
  std::uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

/// "10.0.0.53", "10.0.0.53:5353", "[fd00::53]:53"; empty when it is none.
std::optional<Endpoint> parse_endpoint(const std::string& text, std::uint16_t port);

struct Resolution {
  DnsCode code = DnsCode::ServerFailure;
  std::vector<IpAddress> addresses;  ///< IPv4 first
  std::uint32_t ttl_seconds = 0;
};

/// Asks this host's name servers (or those given) for the addresses of names, both families at once. Every attempt has
/// its own socket, and so a port and an id that who is not on the way cannot guess.
class Resolver {
 public:
  using Done = std::function<void(const Resolution&)>;
  /// With no servers, those of /etc/resolv.conf, which is read again when it has changed.
  Resolver(Loop& loop, std::vector<Endpoint> servers);
  ~Resolver();
  /// `done` is called from the loop, never from here.
  void resolve(const std::string& name, Done done);

 private:
  class Query;
  class Lookup;
  const std::vector<Endpoint>& servers();

  Loop& loop_;
  std::vector<Endpoint> fixed_, read_;
  struct timespec read_time_ = {};
  std::list<std::unique_ptr<Lookup>> lookups_;
};

}  // namespace dsec::egress
