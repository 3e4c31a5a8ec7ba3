#pragma once

#include <memory>

#include "core/engine/home.h"

namespace dsec::cli {

/// What stands behind the commands. The only place that knows every type: each part is made when it is first asked
/// for, with the parts that it needs. One thread.
class Wiring {
 public:
  Wiring();
  ~Wiring();
  Wiring(const Wiring&) = delete;
  Wiring& operator=(const Wiring&) = delete;

  const engine::Home& home();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace dsec::cli
