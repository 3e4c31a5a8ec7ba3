#include "cli/wiring.h"

#include <optional>

#include "layers/mount/layer_mounter.h"
#include "registry/store/local_store.h"
#include "runners/container/container_runner.h"

namespace dsec::cli {

// In this order: what is made later stands on what was made before, and goes first.
struct Wiring::Parts {
  std::optional<engine::Home> home;
  std::unique_ptr<registry::LocalStore> store;
  std::unique_ptr<engine::LayerMounter> mounter;
  std::unique_ptr<engine::Runner> container;
  std::unique_ptr<engine::LocalEngine> engine;
};

Wiring::Wiring() : parts_(std::make_unique<Parts>()) {}
Wiring::~Wiring() = default;

const engine::Home& Wiring::home() {
  if (!parts_->home) parts_->home = engine::Home::open();
  return *parts_->home;
}

registry::LocalStore& Wiring::store() {
  if (!parts_->store) parts_->store = registry::open_store(home());
  return *parts_->store;
}

engine::LayerStore& Wiring::layer_store() { return store(); }

engine::LayerMounter& Wiring::mounter() {
  if (!parts_->mounter) parts_->mounter = layers::make_layer_mounter(home(), store());
  return *parts_->mounter;
}

engine::Runners Wiring::runners() {
  if (!parts_->container) parts_->container = runners::make_container_runner(home());
  return {{"container", *parts_->container}};
}

engine::LocalEngine& Wiring::engine() {
  if (!parts_->engine) parts_->engine = engine::make_local_engine(home(), store(), mounter(), runners());
  return *parts_->engine;
}

}  // namespace dsec::cli
