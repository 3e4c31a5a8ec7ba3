#pragma once

#include <map>
#include <memory>
#include <string>

#include "runners/egress/gateway/loop.h"
#include "runners/egress/gateway/resolver.h"

namespace dsec::egress {

class Sandbox;

/// The UDP of one sandbox: what comes for port 53 is answered, the rest goes on over a socket for each pair of
/// addresses. Answers are written as whole packets, since they come from addresses that no socket inside is bound to.
class Datagrams {
 public:
  explicit Datagrams(Sandbox& sandbox);
  ~Datagrams();
  /// Ends flows that the policy no longer allows.
  void check();
  void cut(const std::string& reason);
  std::size_t size() const { return flows_.size(); }

 private:
  class Flow;
  using Key = std::pair<std::pair<IpAddress, std::uint16_t>, std::pair<IpAddress, std::uint16_t>>;
  void receive();
  void take(const Endpoint& from, const Endpoint& to, std::string_view data);
  /// To the sandbox, as if `from` had sent it.
  void send(const Endpoint& from, const Endpoint& to, std::string_view data);
  void forget(const Key& key);

  Sandbox& sandbox_;
  std::size_t waiting_ = 0;  ///< bytes of all flows that wait for a name's addresses
  std::map<Key, std::unique_ptr<Flow>> flows_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Watch> watch_;
};

}  // namespace dsec::egress
