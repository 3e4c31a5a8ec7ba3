#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/unique_fd.h"
#include "core/engine/engine.h"
#include "core/remote/edge/http_server.h"

namespace dsec::remote {

struct EdgeOptions {
  std::string name;                  ///< [a-z0-9][a-z0-9._-]{0,62}; throws Error (Usage) for another
  std::optional<std::string> token;  ///< what clients must say; none: whoever can connect may do all
  ServerLimits limits;
  std::size_t transfers = 128;                  ///< files, logs, watches and the like at once: a thread each
  std::function<void(const std::string&)> log;  ///< gets a line of JSON for each request; from any thread
};

/// An engine behind HTTP, as man/dsec-wire.7.md describes it: what it is asked it asks the engine, whose calls wait in
/// a bounded number of threads. Commands and ports need none while they are open.
class Edge {
 public:
  /// `listener` listens. The engine must outlive it.
  Edge(engine::Engine& engine, UniqueFd listener, EdgeOptions options);
  ~Edge();

  /// Takes no more connections, answers what was asked, and tells streams that it ends; what is left after `time` is
  /// cut off. Sandboxes and their commands go on. False when a thread still works for what was cut: the destructor
  /// waits for it, however long that takes.
  bool drain(std::chrono::milliseconds time);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace dsec::remote
