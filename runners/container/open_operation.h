#pragma once

#include <memory>

#include "core/engine/runner.h"
#include "runners/container/channel.h"

namespace dsec::runners {

/// Runner::begin on a connection of its own.
std::unique_ptr<engine::OpenOperation> begin_operation(Channel channel, const engine::OperationRequest& request);

}  // namespace dsec::runners
