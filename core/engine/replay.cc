#include "core/engine/replay.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"

namespace dsec::engine {
namespace {

using State = ReplayedOperation::State;

constexpr std::size_t kPipe = 64 << 10;
// Of each stream, held while it is compared; no trajectory keeps more unless it was asked to.
constexpr std::size_t kMostOutput = 64 << 20;

// Reads a command to its end.
class CommandAgain {
 public:
  CommandAgain(Engine& engine, const std::string& id, const Trajectory& trajectory, const Operation& recorded)
      : input_(trajectory.input(recorded)) {
    ExecSpec spec = exec_spec_of(recorded);
    // The sandbox must outlive the last command, for what is asked of it afterwards.
    spec.main = false;
    spec.detach = false;
    spec.operation = {.op_id = "", .origin = Origin::Replay};
    stream_ = engine.exec(id, spec);
    if (!spec.open_stdin) return;
    if (input_.size() <= kPipe)
      give_input();
    else
      writer_ = std::thread([this] { give_input(); });
  }
  ~CommandAgain() {
    if (writer_.joinable()) writer_.join();
  }
  CommandAgain(const CommandAgain&) = delete;
  CommandAgain& operator=(const CommandAgain&) = delete;

  ExecResult finish(std::string& out, std::string& err) {
    while (const std::optional<ExecEvent> event = stream_->next()) {
      if (event->kind == ExecEvent::Kind::Exited) return event->result;
      std::string& kept = event->kind == ExecEvent::Kind::Stderr ? err : out;
      kept += event->data.substr(0, kMostOutput - std::min(kMostOutput, kept.size()));
    }
    return {};
  }

 private:
  void give_input() {
    try {
      if (!input_.empty()) stream_->write_stdin(input_);
      stream_->close_stdin();
    } catch (const Error&) {
      // The command ended without reading it all.
    }
  }
  const std::string input_;
  std::unique_ptr<ExecStream> stream_;
  std::thread writer_;
};

class Replay {
 public:
  Replay(Engine& engine, const std::string& id, const Trajectory& trajectory, const Normaliser& normaliser,
         const ReplayOptions& options)
      : engine_(engine), id_(id), trajectory_(trajectory), normaliser_(normaliser), options_(options) {}

  ReplayReport run() {
    for (const Operation& operation : trajectory_.operations) {
      if (options_.until && operation.seq > *options_.until) break;
      await_those_that_ended_before(operation.started);
      if (stopped_) break;
      keep_distance(operation);
      report_.last = operation.seq;
      begin(operation);
      if (stopped_) break;
    }
    // What was still running at the end of the trajectory has no recorded end to wait for.
    await_those_that_ended_before(std::chrono::system_clock::time_point::max());
    return report_;
  }

 private:
  struct Running {
    const Operation* recorded;
    std::chrono::steady_clock::time_point begun;
    std::thread reader;
    ReplayedOperation done;
    std::exception_ptr failed;
    std::unique_ptr<CommandAgain> command;
  };

  // While something runs, what it has done by the time the next operation begins may matter.
  void keep_distance(const Operation& operation) const {
    if (running_.empty()) return;
    const Running& last = running_.back();
    std::this_thread::sleep_until(last.begun + (operation.started - last.recorded->started));
  }

  void begin(const Operation& operation) {
    if (operation.kind == "exec") return begin_command(operation);
    ReplayedOperation done{.recorded = &operation};
    if (operation.kind == "write")
      write(operation, done);
    else if (operation.kind == "read")
      read(operation, done);
    else
      skip(done, "a replay does not repeat " + operation.kind);
    tell(std::move(done));
  }

  void begin_command(const Operation& operation) {
    Running& running = running_.emplace_back();
    running.recorded = running.done.recorded = &operation;
    running.begun = std::chrono::steady_clock::now();
    if (exec_spec_of(operation).open_stdin && operation.done && input_was_cut(operation)) {
      skip(running.done, "its standard input was not kept whole");
      return tell_and_forget(std::prev(running_.end()));
    }
    try {
      running.command = std::make_unique<CommandAgain>(engine_, id_, trajectory_, operation);
    } catch (const Error& error) {
      running.failed = std::current_exception();
      compare_failure(error, running.done);
      return tell_and_forget(std::prev(running_.end()));
    }
    running.reader = std::thread([this, &running] {
      try {
        compare_command(running);
      } catch (...) {
        running.failed = std::current_exception();
      }
    });
  }

  // Nothing tells how much was given: what fills all that is kept may have been more.
  bool input_was_cut(const Operation& operation) const {
    const std::uint64_t kept = exec_spec_of(operation).output_limit.value_or(trajectory_.header.spec.limits.output);
    return trajectory_.input(operation).size() >= kept;
  }

  void await_those_that_ended_before(std::chrono::system_clock::time_point time) {
    for (auto running = running_.begin(); running != running_.end();) {
      const auto next = std::next(running);
      const Operation& recorded = *running->recorded;
      if (recorded.done && recorded.done->time <= time) {
        running->reader.join();
        if (running->failed) std::rethrow_exception(running->failed);
        tell_and_forget(running);
      }
      running = next;
    }
  }

  void tell_and_forget(std::list<Running>::iterator running) {
    ReplayedOperation done = std::move(running->done);
    running_.erase(running);
    tell(std::move(done));
  }

  void tell(ReplayedOperation done) {
    report_.same += done.state == State::Same;
    report_.different += done.state == State::Different;
    report_.skipped += done.state == State::Skipped;
    if (done.state == State::Different && !options_.keep_going) stopped_ = true;
    if (options_.tell) options_.tell(done);
  }

  static void skip(ReplayedOperation& done, std::string why) {
    done.state = State::Skipped;
    done.why = std::move(why);
  }

  void compare(ReplayedOperation& done, const std::string& what, const std::string& then,
               const std::string& now) const {
    if (then == now) return;
    std::string left = normaliser_.apply(then), right = normaliser_.apply(now);
    if (left == right) return;
    done.state = State::Different;
    done.differences.push_back({what, std::move(left), std::move(right)});
  }

  void compare_command(Running& running) const {
    ReplayedOperation& done = running.done;
    const ExecResult now = running.command->finish(done.out, done.err);
    const Operation& recorded = *running.recorded;
    if (!recorded.done) return skip(done, "its end was not recorded");
    const ExecResult then = exec_result_of(recorded);
    if (recorded.done->outcome != Operation::Outcome::Ok) {
      if (now.shell_code() == 0) return;  // it was not carried out then, and now it was
    }
    compare(done, "exit code", std::to_string(then.shell_code()), std::to_string(now.shell_code()));
    compare_output(done, "stdout", 0, then.stdout_dropped, done.out);
    compare_output(done, "stderr", 1, then.stderr_dropped, done.err);
  }

  // Where the middle of the recorded output is missing, what comes before it is compared.
  void compare_output(ReplayedOperation& done, const char* what, unsigned stream, std::uint64_t dropped,
                      const std::string& now) const {
    if (dropped == 0) return compare(done, what, trajectory_.output(*done.recorded, stream), now);
    const std::string mark = "\n[dsec: " + std::to_string(dropped) + " bytes dropped here]\n";
    std::string head;
    bool whole = false;
    trajectory_.output(*done.recorded, Trajectory::Marks::With, [&](unsigned from, auto, std::string_view data) {
      if (from != stream) return;
      whole = whole || data == mark;
      if (!whole) head += data;
    });
    compare(done, what, head, now.substr(0, head.size()));
  }

  static void compare_failure(const Error& error, ReplayedOperation& done) {
    const Operation& recorded = *done.recorded;
    if (recorded.done && recorded.done->outcome == Operation::Outcome::Failed) return;
    done.state = State::Different;
    done.differences.push_back({"outcome", recorded.done ? "ok" : "unknown", error.message()});
  }

  void write(const Operation& operation, ReplayedOperation& done) {
    const UniqueFd content = trajectory_.content(operation);
    if (!content) return skip(done, "the files that it brought in were not kept");
    try {
      engine_.copy_in(id_, path_of(operation), content.get(), {.op_id = "", .origin = Origin::Replay});
    } catch (const Error& error) {
      return compare_failure(error, done);
    }
  }

  void read(const Operation& operation, ReplayedOperation& done) {
    const UniqueFd nowhere = open_file("/dev/null", O_WRONLY);
    try {
      engine_.copy_out(id_, path_of(operation), nowhere.get(), {.op_id = "", .origin = Origin::Replay});
    } catch (const Error& error) {
      return compare_failure(error, done);
    }
    if (operation.done && operation.done->outcome == Operation::Outcome::Failed) {
      done.state = State::Different;
      done.differences.push_back({"outcome", "failed", "ok"});
    }
  }

  static std::string path_of(const Operation& operation) {
    return bytes_of_json(parse_json(operation.request, "request").at("path"));
  }

  Engine& engine_;
  const std::string& id_;
  const Trajectory& trajectory_;
  const Normaliser& normaliser_;
  const ReplayOptions& options_;
  std::list<Running> running_;
  ReplayReport report_;
  bool stopped_ = false;
};

}  // namespace

SandboxSpec replay_spec(const TrajectoryHeader& header) {
  SandboxSpec spec = header.spec;
  spec.name.clear();
  if (spec.hostname.empty()) spec.hostname = header.id;
  spec.lifetime.reset();
  spec.idle.reset();
  spec.made_for_command = false;
  spec.remove_at_end = true;
  spec.labels["dsec.replay-of"] = header.id;
  spec.layers.clear();
  for (const TrajectoryHeader::Layer& layer : header.layers) spec.layers.push_back(layer.digest);
  return spec;
}

ReplayReport replay(Engine& engine, const std::string& id, const Trajectory& trajectory, const Normaliser& normaliser,
                    const ReplayOptions& options) {
  return Replay(engine, id, trajectory, normaliser, options).run();
}

}  // namespace dsec::engine
