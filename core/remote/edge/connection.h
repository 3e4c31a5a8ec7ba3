#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "core/base/unique_fd.h"
#include "core/remote/edge/http_server.h"

namespace dsec::remote {

/// What all connections of a server share.
struct ServerShared {
  RequestHandler& handler;
  const ServerLimits limits;
  std::atomic<std::size_t> held = 0;  ///< bytes of bodies
  std::atomic<bool> draining = false;
};

/// A connection of a client, and the exchange that it is at. Any thread.
class ServedConnection : public Exchange {
 public:
  virtual void begin() = 0;
  /// Ends when it has nothing to do, and tells whoever streams.
  virtual void drain() = 0;
  virtual void cut() = 0;
};

/// Threads that serve connections.
class EventLoop {
 public:
  EventLoop();
  /// Ends its threads; what connections wait for is dropped.
  ~EventLoop();
  void start(unsigned threads);
  /// `closed` is called when the connection is gone, and nobody holds it. The loop must outlive it.
  std::shared_ptr<ServedConnection> serve(ServerShared& shared, UniqueFd socket, int family,
                                          std::function<void()> closed);
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace dsec::remote
