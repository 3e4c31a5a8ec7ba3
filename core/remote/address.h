#pragma once

#include <cstdint>
#include <string>

#include "core/base/unique_fd.h"

namespace dsec::remote {

/// Where an edge is: "unix:/PATH", or "http://HOST[:PORT]" on the loopback (port 7701 where there is none).
struct Address {
  std::string path;  ///< of a socket; empty: host and port
  std::string host;
  std::uint16_t port = 0;

  /// Throws Error (Usage), also for a host that only TLS may reach.
  static Address parse(const std::string& url);
  std::string str() const;
  /// A connected stream. Throws Error.
  UniqueFd connect() const;
};

inline constexpr std::uint16_t kEdgePort = 7701;

/// Listens at "unix:/PATH" (0600, for its owner alone) or "ADDRESS:PORT" of the loopback; `bound` becomes the URL that
/// reaches it. Port 0 takes any. Throws Error (Usage) for any other address: that needs TLS. A socket that a process
/// has left behind is replaced, one that is in use is not.
UniqueFd listen_for_clients(const std::string& text, std::string& bound);
/// Whether anybody on this host can connect there.
bool needs_token(const std::string& text);

}  // namespace dsec::remote
