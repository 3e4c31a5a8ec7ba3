#include "core/engine/recording.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/error.h"

namespace dsec::engine {
namespace {
using std::chrono::microseconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr std::pair<std::string_view, ErrorKind> kErrorKinds[] = {
    {"usage", ErrorKind::Usage}, {"failed", ErrorKind::Failed}, {"internal", ErrorKind::Internal}};

// Writes to the log of a sandbox whose keeper is gone.
class WrittenOperation final : public OpenOperation {
 public:
  WrittenOperation(TrajectoryWriter writer, const OperationRequest& request)
      : writer_(std::move(writer)), named_(!request.context.op_id.empty()) {
    operation_.op_id = request.context.op_id;
    operation_.kind = request.kind;
    operation_.origin = request.context.origin;
    operation_.request = request.request;
    operation_.started = system_clock::now();
    operation_.seq = writer_.started(operation_);
    if (operation_.op_id.empty()) operation_.op_id = "#" + std::to_string(operation_.seq);
    if (named_) writer_.sync();
  }

  std::uint64_t seq() const override { return operation_.seq; }
  void end(const Operation::Done& done) override {
    operation_.done = done;
    operation_.done->time = system_clock::now();
    operation_.done->duration = std::chrono::duration_cast<microseconds>(steady_clock::now() - began_);
    writer_.done(operation_);
    if (named_) writer_.sync();
  }

 private:
  TrajectoryWriter writer_;
  const bool named_;
  const steady_clock::time_point began_ = steady_clock::now();
  Operation operation_;
};

class UnrecordedOperation final : public OpenOperation {
 public:
  std::uint64_t seq() const override { return 0; }
  void end(const Operation::Done&) override {}
};

// Null when it is recorded already.
std::unique_ptr<OpenOperation> open_operation(const RecordingPlace& place, const OperationRequest& request) {
  if (place.trajectory.empty() || !request.context.recorded) return std::make_unique<UnrecordedOperation>();
  if (!place.runner) return nullptr;
  if (place.runner->status(place.sandbox).keeper_pid) {
    try {
      return place.runner->begin(place.sandbox, request);
    } catch (const Error&) {
      // Or it has just ended, and nobody writes to its log any more.
      if (place.runner->status(place.sandbox).keeper_pid) throw;
    }
  }
  const auto known = [&] {
    const std::string& op_id = request.context.op_id;
    return op_id.empty() ? std::optional<Operation>() : find_operation(place.trajectory, op_id);
  };
  if (const std::optional<Operation> before = known(); before && before->done) return nullptr;
  // Waits for whoever is carrying one out, which may be the same.
  TrajectoryWriter writer(place.trajectory);
  if (known()) return nullptr;
  return std::make_unique<WrittenOperation>(std::move(writer), request);
}

std::string brief(const Json& value) {
  constexpr std::size_t kMost = 200;
  std::string text = value.is_null() ? "nothing" : canonical_json(value);
  if (text.size() > kMost) text = text.substr(0, kMost) + "…";
  return text;
}

Operation outcome_of(const RecordingPlace& place, const OperationRequest& request) {
  const std::string& op_id = request.context.op_id;
  std::optional<Operation> found = find_operation(place.trajectory, op_id);
  if (!found) throw Error(ErrorKind::Internal, "operation " + quote(op_id) + " is recorded and cannot be found");
  check_same_request(*found, request.kind, request.request);
  if (!found->done || found->done->outcome == Operation::Outcome::Interrupted)
    throw failure(found->done ? "what carried it out was interrupted" : "its beginning is recorded, but not its end")
        .context("the outcome of operation " + quote(op_id) + " is unknown")
        .hint("look at what it did, and repeat it under another op-id if it has to be done again");
  if (found->done->outcome == Operation::Outcome::Failed)
    throw error_from(parse_json(found->done->result, "result").value("error", Json::object()));
  return *std::move(found);
}

class RecordedStream final : public ExecStream {
 public:
  RecordedStream(std::string exec_id, std::deque<ExecEvent> events)
      : exec_id_(std::move(exec_id)), events_(std::move(events)) {}

  const std::string& exec_id() const override { return exec_id_; }
  std::optional<ExecEvent> next(std::optional<std::chrono::milliseconds>) override {
    if (events_.empty()) throw failure("the recorded command has ended");
    ExecEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  int descriptor() const override { return -1; }
  // What it was given then decided what it did.
  void write_stdin(std::string_view) override {}
  void close_stdin() override {}
  void resize(std::uint16_t, std::uint16_t) override {}
  void signal(int) override {}

 private:
  const std::string exec_id_;
  std::deque<ExecEvent> events_;
};

}  // namespace

std::unique_ptr<ExecStream> ended_command(std::string exec_id, std::deque<ExecEvent> events) {
  return std::make_unique<RecordedStream>(std::move(exec_id), std::move(events));
}

Operation record_operation(const RecordingPlace& place, const OperationRequest& request,
                           const std::function<void(std::uint64_t seq, Operation::Done& done)>& work) {
  check_op_id(request.context.op_id);
  const std::unique_ptr<OpenOperation> open = open_operation(place, request);
  if (!open) return outcome_of(place, request);
  Operation operation;
  operation.seq = open->seq();
  operation.op_id = request.context.op_id;
  operation.kind = request.kind;
  operation.request = request.request;
  Operation::Done done;
  try {
    work(operation.seq, done);
  } catch (const Error& error) {
    done.outcome = Operation::Outcome::Failed;
    Json result = parse_json(done.result, "result");
    result["error"] = error_json(error);
    done.result = canonical_json(result);
    try {
      open->end(done);
    } catch (const Error&) {
      // The failure that came first is the one to tell; without its end the operation counts as interrupted.
    }
    throw;
  }
  open->end(done);
  operation.done = std::move(done);
  return operation;
}

void check_same_request(const Operation& recorded, const std::string& kind, const std::string& request) {
  if (recorded.kind == kind && recorded.request == request) return;
  Error error = usage_error("operation " + quote(recorded.op_id) + " was another request");
  if (recorded.kind != kind) {
    error = usage_error("it was recorded as " + quote(recorded.kind) + ", and is asked for as " + quote(kind))
                .context("operation " + quote(recorded.op_id) + " was another request");
  } else {
    const Json was = parse_json(recorded.request, "request"), is = parse_json(request, "request");
    std::string differences;
    Json members = was;
    members.update(is);
    for (const auto& [name, ignored] : members.items()) {
      const Json before = was.value(name, Json()), now = is.value(name, Json());
      if (before != now)
        differences += (differences.empty() ? "" : "; ") + name + " was " + brief(before) + ", is " + brief(now);
    }
    error = usage_error(differences).context("operation " + quote(recorded.op_id) + " was another request");
  }
  throw std::move(error).hint("give each request an op-id of its own");
}

std::unique_ptr<ExecStream> recorded_command(const Trajectory& trajectory, const Operation& operation) {
  std::deque<ExecEvent> events;
  trajectory.output(operation, Trajectory::Marks::With, [&](unsigned stream, auto, std::string_view data) {
    events.push_back({stream ? ExecEvent::Kind::Stderr : ExecEvent::Kind::Stdout, std::string(data), {}});
  });
  events.push_back({ExecEvent::Kind::Exited, "", exec_result_of(operation)});
  return std::make_unique<RecordedStream>(operation.exec_id, std::move(events));
}

Json error_json(const Error& error) {
  const char* kind = "internal";
  for (const auto& [word, value] : kErrorKinds)
    if (value == error.kind()) kind = word.data();
  Json chain = Json::array(), actions = Json::array();
  for (const std::string& cause : error.chain()) chain.push_back(cause);
  for (const std::string& hint : error.hints()) actions.push_back(hint);
  return {{"kind", kind}, {"chain", chain}, {"try", actions}};
}

Error error_from(const Json& json) {
  const std::string kind = json_string_or(json, "kind", "failed");
  ErrorKind value = ErrorKind::Failed;
  for (const auto& [word, known] : kErrorKinds)
    if (word == kind) value = known;
  std::vector<std::string> chain;
  for (const Json& cause : json.value("chain", Json::array()))
    if (cause.is_string()) chain.push_back(cause.get<std::string>());
  if (chain.empty()) chain.push_back("it failed");
  Error error(value, chain.back());
  for (std::size_t left = chain.size() - 1; left > 0; --left) error.context(chain[left - 1]);
  for (const Json& hint : json.value("try", Json::array()))
    if (hint.is_string()) error.hint(hint.get<std::string>());
  return error;
}

}  // namespace dsec::engine
