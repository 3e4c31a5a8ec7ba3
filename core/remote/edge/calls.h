#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/engine/engine.h"
#include "core/remote/edge/http_server.h"
#include "core/remote/routes.h"

namespace dsec::remote {

/// A request as the engine's calls need it.
struct Asked {
  const Route* route = nullptr;
  Parameters parameters;             ///< of path and query
  std::shared_ptr<const Json> body;  ///< an object; {} where the call has none
  OperationContext context;

  /// Throws Error (Usage) for what is no request of this route.
  Asked(const HttpHead& head, const std::string& text);

  const std::string& id() const { return parameters.at("id"); }
  std::string text(const char* name) const;  ///< of a parameter; empty when it is not there
  bool flag(const char* name) const;
  std::optional<std::uint64_t> number(const char* name) const;
  std::uint16_t port() const;
};

/// How the edge works on a call.
enum class Work {
  AtOnce,    ///< health and metrics
  Quick,     ///< one question and answer
  Slow,      ///< likewise, and it may take seconds
  Command,   ///< a stream of a command
  Transfer,  ///< a stream that a thread writes or reads
  Bytes,     ///< a connection into the sandbox, or to its screen
  End,       ///< wait
};
Work work_of(Call call);

/// Of Quick and Slow: carries it out and returns what it is answered with.
Json carry_out(engine::Engine& engine, const Asked& asked);
/// Of Command.
std::unique_ptr<engine::ExecStream> start_command(engine::Engine& engine, const Asked& asked);
/// Of Bytes.
UniqueFd connect_bytes(engine::Engine& engine, const Asked& asked);
/// Of Transfer, but for copies: writes frames to `to` until it ends.
void write_frames(engine::Engine& engine, const Asked& asked, int to);

}  // namespace dsec::remote
