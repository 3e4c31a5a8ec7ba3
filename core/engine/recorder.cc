#include "core/engine/recorder.h"

#include <exception>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/model/operation.h"

namespace dsec::engine {
namespace fs = std::filesystem;

void Recorder::begin_trajectory(const Lease& lease, const std::vector<StoredLayer>& layers,
                                RunnerRequest& request) const {
  TrajectoryHeader header{.id = lease.id,
                          .environment = lease.spec.environment,
                          .layers = {},
                          .spec = lease.spec,
                          .created = lease.created,
                          .dsec = kVersion,
                          .source = {}};
  for (const StoredLayer& layer : layers)
    header.layers.push_back({layer.digest, layer.tags.empty() ? layer.manifest.name.str() : layer.tags.front()});
  request.trajectory = home_.trajectories() / lease.id;
  request.trajectory_checksum = TrajectoryWriter::create(request.trajectory, header);
}

std::string Recorder::trajectory_id(const std::string& text) const {
  try {
    return sandboxes_.records().resolve(text);
  } catch (const Error&) {
    // Looked for among those that are gone.
  }
  std::vector<std::string> matching;
  std::string named;  // id of the newest that had the name
  std::chrono::system_clock::time_point newest;
  for (const std::string& id : trajectory_ids(home_)) {
    if (text.size() >= 4 && id.starts_with(text)) matching.push_back(id);
    try {
      // A name is free again when its sandbox is gone.
      const TrajectoryHeader header = read_trajectory_header(home_.trajectories() / id);
      if (header.spec.name != text || (!named.empty() && newest >= header.created)) continue;
      named = id;
      newest = header.created;
    } catch (const Error&) {
      // It has no name that could be read.
    }
  }
  if (matching.empty() && !named.empty() && !text.empty()) return named;
  if (matching.size() == 1) return matching.front();
  Error error = usage_error(matching.empty() ? "there is no trajectory of a sandbox " + quote(text)
                                             : "several trajectories have ids that begin with " + quote(text));
  for (const std::string& id : matching) error.hint(id);
  throw std::move(error).hint("dsec traj ls lists all trajectories");
}

std::optional<Operation> Recorder::recorded(const std::string& text, const std::string& op_id) const {
  check_op_id(op_id);
  if (op_id.empty()) return std::nullopt;
  fs::path place;
  try {
    place = home_.trajectories() / trajectory_id(text);
  } catch (const Error&) {
    return std::nullopt;
  }
  return fs::exists(place / kTrajectoryLog) ? find_operation(place, op_id) : std::nullopt;
}

SandboxInfo Recorder::ended_sandbox(const std::string& id) const {
  SandboxInfo info;
  info.id = id;
  info.state = SandboxState::Stopped;
  info.reason = "it has ended and was removed";
  const fs::path place = home_.trajectories() / id;
  if (!fs::exists(place / kTrajectoryLog)) return info;
  const Trajectory trajectory = Trajectory::read(place);
  info.spec = trajectory.header.spec;
  info.created = trajectory.header.created;
  for (const Operation& operation : trajectory.operations) {
    if (operation.kind != "exec" || !exec_spec_of(operation).main || !operation.done) continue;
    info.command = exec_spec_of(operation).argv;
    info.main_result = exec_result_of(operation);
    info.ended = operation.done->time;
  }
  return info;
}

Subject Recorder::subject(const std::string& id, const OperationContext& context) const {
  check_op_id(context.op_id);
  try {
    SandboxInfo info = sandboxes_.inspect(id);
    RecordingPlace place{&sandboxes_.runner_of(info.spec), sandboxes_.directory(info.id),
                         home_.trajectories() / info.id};
    // Some are made not to be recorded, and those of an earlier release have none.
    if (!info.spec.record || !fs::exists(place.trajectory / kTrajectoryLog)) place.trajectory.clear();
    std::string found = info.id;
    return {std::move(found), std::move(info), std::move(place)};
  } catch (const Error&) {
    if (context.op_id.empty()) throw;
    // It may have been removed, and its trajectory be left.
    const std::exception_ptr unknown = std::current_exception();
    std::string found;
    try {
      found = trajectory_id(id);
    } catch (const Error&) {
      std::rethrow_exception(unknown);
    }
    const fs::path trajectory = home_.trajectories() / found;
    if (!fs::exists(trajectory / kTrajectoryLog) || !find_operation(trajectory, context.op_id))
      std::rethrow_exception(unknown);
    return {std::move(found), std::nullopt, {nullptr, {}, trajectory}};
  }
}

Operation Recorder::record(const Subject& subject, const OperationRequest& request, const Work& work) {
  return record_operation(subject.place, request, [&](std::uint64_t, Operation::Done& done) {
    work(*subject.place.runner, subject.place.sandbox, done);
  });
}

std::unique_ptr<ExecStream> Recorder::run_once(const std::string& id, const OperationRequest& asked,
                                               const Start& start) const {
  const Subject subject = this->subject(id, asked.context);
  const RecordingPlace& place = subject.place;
  if (place.trajectory.empty())
    throw usage_error("nothing is recorded of sandbox " + id).hint("without --op-id the command can be executed");
  const auto known = [&] {
    std::optional<Operation> operation = find_operation(place.trajectory, asked.context.op_id);
    if (operation) check_same_request(*operation, asked.kind, asked.request);
    return operation;
  };
  std::optional<Operation> operation;
  if (subject.info && subject.info->keeper_pid) {
    if (auto stream = start(*place.runner, place.sandbox)) return stream;
    operation = known();
    if (operation && !operation->done) {
      try {
        return place.runner->attach(place.sandbox, operation->exec_id, {});
      } catch (const Error&) {
        // It has just ended, or its keeper has.
        operation = known();
      }
    }
  } else {
    operation = known();
  }
  if (operation) return recorded_command(Trajectory{place.trajectory, {}, {}, {}}, *operation);
  return start(*place.runner, place.sandbox);
}

}  // namespace dsec::engine
