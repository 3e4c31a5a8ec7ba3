#include "runners/container/namespace_supply.h"

#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/engine/sandbox_id.h"

namespace dsec::runners {
namespace {

using Network = NewUserNamespace::Network;

std::unique_ptr<NewUserNamespace> make_namespace(Network network) {
  return std::make_unique<NewUserNamespace>(id_map_for(engine::random_id(16), host_id_range()), network);
}

}  // namespace

std::unique_ptr<NewUserNamespace> NamespaceSupply::take() {
  std::unique_ptr<NewUserNamespace> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (begun_) waiting = std::move(waiting_);
  }
  // Its maker ends with the thread that started it.
  return waiting && waiting->maker_lives() ? std::move(waiting) : make_namespace(Network::With);
}

void NamespaceSupply::make(Network network) noexcept {
  if (waiting_) return;
  try {
    waiting_ = make_namespace(network);
    begun_ = network == Network::With;
  } catch (const std::exception&) {
    // Whoever needs it makes its own, and tells why it cannot.
  }
}

void NamespaceSupply::prepare() noexcept {
  const std::lock_guard lock(mutex_);
  make(Network::With);
}

void NamespaceSupply::refill() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(again_, true)) make(Network::Later);
}

void NamespaceSupply::begin() noexcept {
  const std::lock_guard lock(mutex_);
  if (waiting_ && !std::exchange(begun_, true)) waiting_->begin_network();
}

void NamespaceSupply::clear() {
  std::unique_ptr<NewUserNamespace> waiting;
  const std::lock_guard lock(mutex_);
  waiting = std::move(waiting_);
}

}  // namespace dsec::runners
