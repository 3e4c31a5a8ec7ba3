#pragma once

#include <sys/types.h>

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "runners/egress/gateway/guard.h"
#include "runners/egress/gateway/loop.h"
#include "runners/egress/gateway/resolver.h"
#include "runners/egress/gateway/sandbox.h"

namespace dsec::egress {

/// Serves the control socket and holds the sandboxes that were attached. Ends by itself a little after the last of
/// them.
class Gateway {
 public:
  /// Only root and `owner` are listened to. `servers`: name servers; empty: this host's. `kept`: what another process
  /// has served before.
  Gateway(UniqueFd listener, uid_t owner, const std::vector<std::string>& servers, Guard& guard, Kept kept);
  ~Gateway();
  void run();

 private:
  struct Client;
  void accept();
  void serve(Client& client);
  Json handle(const Json& request, std::vector<UniqueFd>& descriptors);
  Json attach(const Json& request, std::vector<UniqueFd>& descriptors);
  void restore(const std::string& id, std::vector<UniqueFd> descriptors);
  void keep(Sandbox& sandbox);
  void on_guard_gone();
  void remove(const std::string& id);
  void end_when_idle();

  Guard& guard_;
  Loop loop_;
  const UniqueFd listener_;
  const uid_t owner_;
  Resolver resolver_;
  Host host_{loop_, resolver_};
  std::map<std::string, std::unique_ptr<Sandbox>> sandboxes_;
  std::list<std::unique_ptr<Client>> clients_;
  std::string buffer_;  ///< for one request
  std::optional<Watch> listener_watch_, guard_watch_;
  std::optional<Timer> idle_;
};

}  // namespace dsec::egress
