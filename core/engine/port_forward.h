#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/engine/engine.h"

namespace dsec::engine {

/// Listens at "ADDRESS:PORT", "[ADDRESS]:PORT" or "PORT" (then at 127.0.0.1) of this host; port 0 takes any. `bound`
/// becomes what it is. Throws Error.
UniqueFd listen_at(const std::string& address, std::string& bound);

/// Brings every connection that comes to `listener` to what `connect` gives, of the sandbox `id`, each in a thread of
/// its own and until both sides have ended; returns when the sandbox has ended. `failed` is called, from any of these
/// threads as `connect` is, for each connection that could not be made.
void forward_connections(Engine& engine, const std::string& id, int listener, const std::function<UniqueFd()>& connect,
                         const std::function<void(const Error&)>& failed);

/// The same, to a port of the sandbox.
void forward_port(Engine& engine, const std::string& id, int listener, std::uint16_t port,
                  const std::function<void(const Error&)>& failed);

}  // namespace dsec::engine
