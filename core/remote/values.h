#pragma once

#include "core/base/json.h"
#include "core/engine/engine.h"

namespace dsec::remote {

/// The values of the engine as the wire has them, and the way back, which throws Error (Usage) naming what is wrong.
/// Where the engine has bytes a JSON string cannot hold all of them: json_bytes(). Times are ISO 8601, null: none.

Json to_wire(const engine::SandboxInfo& info);
engine::SandboxInfo sandbox_from_wire(const Json& json);
Json to_wire(const engine::SandboxStats& stats);
engine::SandboxStats stats_from_wire(const Json& json);
Json to_wire(const engine::ExecInfo& info);
engine::ExecInfo exec_info_from_wire(const Json& json);
Json to_wire(const engine::SessionInfo& info);
engine::SessionInfo session_from_wire(const Json& json);
Json to_wire(const engine::StoredLayer& layer);
engine::StoredLayer layer_from_wire(const Json& json);

/// Requests go without their OperationContext, which is in headers.
Json to_wire(const ExecSpec& spec);
ExecSpec exec_spec_from_wire(const Json& json);
Json to_wire(const SessionSpec& spec);
SessionSpec session_spec_from_wire(const Json& json);
Json to_wire(const SessionCommand& command);
SessionCommand session_command_from_wire(const Json& json);
Json to_wire(const engine::UpdateRequest& request);
engine::UpdateRequest update_from_wire(const Json& json);
Json to_wire(const engine::SnapshotRequest& request);
engine::SnapshotRequest snapshot_request_from_wire(const Json& json);
Json to_wire(const engine::ForkRequest& request);
engine::ForkRequest fork_request_from_wire(const Json& json);
Json to_wire(const engine::HttpRequest& request);
engine::HttpRequest http_request_from_wire(const Json& json);
Json to_wire(const engine::HttpResponse& response);
engine::HttpResponse http_response_from_wire(const Json& json);
NetworkChange network_change_from_wire(const Json& json);

Json to_wire(const engine::Change& change);
engine::Change change_from_wire(const Json& json);
Json to_wire(const engine::FileChange& change);
engine::FileChange file_change_from_wire(const Json& json);
Json to_wire(const engine::FileEvent& event);
engine::FileEvent file_event_from_wire(const Json& json);
Json to_wire(const engine::NetworkReport& report);
engine::NetworkReport network_report_from_wire(const Json& json);
Json to_wire(const Operation& operation);
Operation operation_from_wire(const Json& json);
Json to_wire(const engine::TrajectoryInfo& info);
engine::TrajectoryInfo trajectory_from_wire(const Json& json);

}  // namespace dsec::remote
