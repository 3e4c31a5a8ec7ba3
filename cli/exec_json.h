#pragma once

#include "core/base/json.h"
#include "core/engine/engine.h"

namespace dsec::cli {

/// The members of -o json, stable; man/dsec.1.md lists them. Output that is no UTF-8 comes as "base64" instead of
/// "data".
Json to_json(const engine::ExecEvent& event);
Json to_json(const ExecResult& result);
/// The member "memory" of a result with oom_kills: those, limit and peak.
Json memory_json(const ExecResult& result);
Json to_json(const engine::SandboxInfo& info);
Json to_json(const engine::SandboxStats& stats);
Json to_json(const engine::ExecInfo& info);
Json to_json(const engine::SessionInfo& info);
/// {"data": text} or {"base64": text}.
Json bytes_to_json(std::string_view bytes);

}  // namespace dsec::cli
