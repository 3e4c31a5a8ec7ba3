#include "cli/wiring.h"

#include <optional>

namespace dsec::cli {

struct Wiring::Parts {
  std::optional<engine::Home> home;
};

Wiring::Wiring() : parts_(std::make_unique<Parts>()) {}
Wiring::~Wiring() = default;

const engine::Home& Wiring::home() {
  if (!parts_->home) parts_->home = engine::Home::open();
  return *parts_->home;
}

}  // namespace dsec::cli
