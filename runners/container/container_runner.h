#pragma once

#include <memory>

#include "core/engine/home.h"
#include "core/engine/runner.h"

namespace dsec::runners {

/// Sandboxes as processes of this kernel in namespaces of their own, each with a keeper; man/dsec-keeper.7.md tells how
/// the parts hold together. Needs root. All calls may be made from several threads.
std::unique_ptr<engine::Runner> make_container_runner(const engine::Home& home);

}  // namespace dsec::runners
