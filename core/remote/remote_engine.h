#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/engine/engine.h"
#include "core/remote/address.h"

namespace dsec::remote {

/// Where sandboxes are: what `dsec context` names.
struct EdgePlace {
  std::string context;  ///< its name, for messages
  Address address;
  std::optional<std::string> token;
};

/// The engine of an edge. Its errors are those of the engine there; that the edge cannot be reached, or breaks the
/// protocol, is an Error that names the context. Each call has a connection of its own, so any number of threads may
/// call; a client that ends does not end what it began.
std::unique_ptr<engine::Engine> make_remote_engine(EdgePlace place);

}  // namespace dsec::remote
