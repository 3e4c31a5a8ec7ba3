#pragma once

#include <memory>

#include "core/engine/engine.h"
#include "core/engine/home.h"
#include "core/engine/layer_mounter.h"
#include "core/engine/layer_store.h"
#include "core/engine/sandbox_records.h"

namespace dsec::engine {

/// The engine of this host. The ports must outlive it.
std::unique_ptr<Engine> make_local_engine(const Home& home, LayerStore& store, LayerMounter& mounter, Runners runners);

}  // namespace dsec::engine
