#pragma once

#include <functional>
#include <memory>

#include "core/base/unique_fd.h"
#include "core/remote/edge/http_server.h"
#include "core/remote/edge/readiness.h"

namespace dsec::remote {

/// Waits for one direction of somebody else's descriptor, through a copy, so that both directions may be waited for.
class Gate {
 public:
  /// -1: always open. Throws Error.
  Gate(Readiness& readiness, int descriptor, Ready what);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  bool open() const;
  /// Calls `work` once, from another thread. Throws Error.
  void when_open(std::function<void()> work);

 private:
  Readiness& readiness_;
  const Ready what_;
  UniqueFd copy_;
};

/// Calls `work` with the pump in the turn of its exchange, as long as the pump is there.
template <typename Pump, typename Work>
std::function<void()> in_turn_of(const std::shared_ptr<Pump>& pump, Work work) {
  return [weak = std::weak_ptr<Pump>(pump), work] {
    if (const auto alive = weak.lock()) alive->exchange().in_turn([alive, work] { work(*alive); });
  };
}

/// Ends a stream of frames: the client, which knows the last one, ends its side.
void say_farewell(const std::shared_ptr<Exchange>& exchange);

}  // namespace dsec::remote
