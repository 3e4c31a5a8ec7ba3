#pragma once

#include <sys/types.h>

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "runners/egress/gateway/loop.h"
#include "runners/egress/gateway/resolver.h"
#include "runners/egress/gateway/sandbox.h"

namespace dsec::egress {

/// Serves the control socket and holds the sandboxes that were attached. Ends by itself a little after the last of
/// them.
class Gateway {
 public:
  /// Only root and `owner` are listened to. `servers`: name servers; empty: this host's.
  Gateway(UniqueFd listener, uid_t owner, const std::vector<std::string>& servers);
  ~Gateway();
  void run();

 private:
  struct Client;
  void accept();
  void serve(Client& client);
  Json handle(const Json& request, std::vector<UniqueFd>& descriptors);
  void attach(const Json& request, std::vector<UniqueFd>& descriptors);
  void remove(const std::string& id);
  void end_when_idle();

  Loop loop_;
  const UniqueFd listener_;
  const uid_t owner_;
  Resolver resolver_;
  Host host_{loop_, resolver_};
  std::map<std::string, std::unique_ptr<Sandbox>> sandboxes_;
  std::list<std::unique_ptr<Client>> clients_;
  std::string buffer_;  ///< for one request
  std::optional<Watch> listener_watch_;
  std::optional<Timer> idle_;
};

}  // namespace dsec::egress
