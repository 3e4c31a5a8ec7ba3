#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/engine/runner.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {

/// Where the operations of one sandbox are recorded.
struct RecordingPlace {
  Runner* runner;                    ///< null: the sandbox was removed, and nothing can be done to it any more
  std::filesystem::path sandbox;     ///< its directory
  std::filesystem::path trajectory;  ///< its directory; empty: nothing is recorded
};

/// Carries out an operation between its two records. `work` gets the operation's number (0: not recorded) and fills in
/// what is recorded of its result; an Error that leaves it is recorded, too. When the op_id is recorded already `work`
/// is not called, and what is recorded is returned, or thrown where it failed. Throws Error (Usage) when the recorded
/// request was another, and Error when its outcome is unknown. The sandbox may run or have ended, or, with an op_id
/// that is recorded, be gone.
Operation record_operation(const RecordingPlace& place, const OperationRequest& request,
                           const std::function<void(std::uint64_t seq, Operation::Done& done)>& work);

/// Throws Error (Usage) naming what differs unless `recorded` is the same request.
void check_same_request(const Operation& recorded, const std::string& kind, const std::string& request);

/// The recorded events of a command, and its result.
std::unique_ptr<ExecStream> recorded_command(const Trajectory& trajectory, const Operation& operation);

/// A command that has ended: these events, and nothing else.
std::unique_ptr<ExecStream> ended_command(std::string exec_id, std::deque<ExecEvent> events);

/// "kind", "chain" and "try" of an error, and the way back.
Json error_json(const Error& error);
Error error_from(const Json& json);

}  // namespace dsec::engine
