#pragma once

#include <memory>

#include "core/engine/engine.h"
#include "core/engine/home.h"
#include "core/engine/layer_mounter.h"
#include "core/engine/layer_packer.h"
#include "core/engine/layer_store.h"
#include "core/engine/sandbox_records.h"

namespace dsec::engine {

/// What only the engine of this host can give.
class LocalEngine : public Engine {
 public:
  /// See Runner::open_writable_layer; for making a layer of what a sandbox wrote.
  virtual UniqueFd open_writable_layer(const std::string& id) = 0;
};

/// The engine of this host. The ports must outlive it.
std::unique_ptr<LocalEngine> make_local_engine(const Home& home, LayerStore& store, LayerMounter& mounter,
                                               LayerPacker& packer, Runners runners);

}  // namespace dsec::engine
