#include "core/engine/replay.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "core/base/signal_name.h"
#include "core/engine/branching_json.h"
#include "core/engine/command_again.h"
#include "core/engine/http_json.h"
#include "core/engine/memory_snapshots.h"
#include "core/engine/tar_entries.h"

namespace dsec::engine {
namespace {

using State = ReplayedOperation::State;

// Between two operations, while something else goes on; and what is left to a command that was killed then.
constexpr std::chrono::seconds kLongestPause{1};

class Replay {
 public:
  Replay(Engine& engine, const std::string& id, const Trajectory& trajectory, const Normaliser& normaliser,
         const ReplayOptions& options)
      : engine_(engine), id_(id), trajectory_(trajectory), normaliser_(normaliser), options_(options) {}

  // When the sandbox is lost something may still be read.
  ~Replay() {
    for (Running& running : running_)
      if (running.reader.joinable()) running.reader.join();
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  ReplayReport run() {
    for (const Operation& operation : trajectory_.operations) {
      if (options_.until && operation.seq > *options_.until) break;
      await_those_that_ended_before(operation.started);
      if (stopped_) break;
      keep_distance(operation);
      report_.last = operation.seq;
      note_time(operation.started);
      begin(operation);
      if (stopped_) break;
    }
    await_those_that_ended_before(std::chrono::system_clock::time_point::max());
    // Of these no end is recorded.
    while (!running_.empty()) {
      await(running_.front());
      tell_and_forget(running_.begin());
    }
    return report_;
  }

 private:
  struct Running {
    const Operation* recorded;
    std::thread reader;
    std::atomic<bool> ended = false;
    ReplayedOperation done;
    std::exception_ptr failed;
    std::unique_ptr<CommandAgain> command;
  };

  // While something runs, what it has done by the time the next operation begins may matter; but who asked may also
  // have thought for an hour.
  void keep_distance(const Operation& operation) const {
    if (running_.empty()) return;
    const std::chrono::nanoseconds since = operation.started - last_then_;
    std::this_thread::sleep_until(last_now_ + std::min<std::chrono::nanoseconds>(since, kLongestPause));
  }
  void note_time(std::chrono::system_clock::time_point then) {
    last_then_ = then;
    last_now_ = std::chrono::steady_clock::now();
  }

  void begin(const Operation& operation) {
    if (operation.kind == "exec" || operation.kind == "session") return begin_command(operation);
    // What was said where the trajectory came from asked the sandbox for nothing.
    if (operation.kind == "document" || operation.kind == "step") return;
    ReplayedOperation done{.recorded = &operation};
    const auto way =
        std::find_if(std::begin(kWays), std::end(kWays), [&](const Way& one) { return operation.kind == one.kind; });
    if (way == std::end(kWays)) {
      skip(done, operation.kind == "tool" ? "it is no command, and what it does only its harness knows"
                                          : "a replay does not know how to repeat it");
      return tell(std::move(done));
    }
    try {
      (this->*way->repeat)(operation, done);
      if (done.state == State::Same && failed_then(operation)) {
        done.state = State::Different;
        done.differences.push_back({"outcome", "failed", "ok"});
      }
    } catch (const Error& error) {
      compare_failure(error, done);
    }
    tell(std::move(done));
  }

  static bool failed_then(const Operation& operation) {
    return operation.done && operation.done->outcome == Operation::Outcome::Failed;
  }

  void begin_command(const Operation& operation) {
    Running& running = running_.emplace_back();
    running.recorded = running.done.recorded = &operation;
    try {
      if (trajectory_.input_was_cut(operation)) {
        skip(running.done, "its standard input was not kept whole");
        return tell_and_forget(std::prev(running_.end()));
      }
      running.command = start_command(operation);
    } catch (const Error& error) {
      compare_failure(error, running.done);
      return tell_and_forget(std::prev(running_.end()));
    }
    running.reader = std::thread([this, &running] {
      try {
        compare_command(running);
      } catch (...) {
        running.failed = std::current_exception();
      }
      running.ended = true;
    });
  }

  // One that was killed then, as a server is with its sandbox, may not end by itself.
  void await(Running& running) const {
    if (const int signal = killed_by(*running.recorded); signal && running.reader.joinable()) {
      const auto deadline = std::chrono::steady_clock::now() + kLongestPause;
      while (!running.ended && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      try {
        if (!running.ended) engine_.signal(id_, running.command->exec_id(), signal, {.recorded = false});
      } catch (const Error&) {
        // It has just ended.
      }
    }
    running.reader.join();
    if (running.failed) std::rethrow_exception(running.failed);
  }
  static int killed_by(const Operation& recorded) {
    if (!recorded.done || recorded.done->outcome == Operation::Outcome::Interrupted) return SIGKILL;
    const ExecResult then = exec_result_of(recorded);
    if (then.cause == ExecResult::Cause::Lost) return SIGKILL;
    return then.cause == ExecResult::Cause::Signalled ? then.signal : 0;
  }

  std::unique_ptr<CommandAgain> start_command(const Operation& operation) {
    if (operation.kind == "session") {
      std::string session;
      SessionCommand command = session_command_of(operation, session);
      command.operation = replayed();
      auto stream = engine_.run_in_session(id_, session_now(session), command);
      return std::make_unique<CommandAgain>(std::move(stream), trajectory_.input(operation), command.open_stdin);
    }
    ExecSpec spec = exec_spec_of(operation);
    // The sandbox must outlive the last command, for what is asked of it afterwards.
    spec.main = false;
    spec.detach = false;
    spec.operation = replayed();
    auto stream = engine_.exec(id_, spec);
    return std::make_unique<CommandAgain>(std::move(stream), trajectory_.input(operation), spec.open_stdin);
  }

  static OperationContext replayed() { return {.op_id = "", .origin = Origin::Replay}; }

  void await_those_that_ended_before(std::chrono::system_clock::time_point time) {
    for (auto running = running_.begin(); running != running_.end();) {
      const auto next = std::next(running);
      const Operation& recorded = *running->recorded;
      if (recorded.done && recorded.done->time <= time) {
        await(*running);
        note_time(recorded.done->time);
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
    CommandAgain::Output output;
    const ExecResult now = running.command->finish(output);
    done.out = std::move(output.out);
    done.err = std::move(output.err);
    const Operation& recorded = *running.recorded;
    if (!recorded.done) return skip(done, "its end was not recorded");
    if (recorded.done->outcome == Operation::Outcome::Interrupted)
      return skip(done, "what carried it out was interrupted");
    if (failed_then(recorded)) {
      done.state = State::Different;
      return done.differences.push_back({"outcome", "failed", "ok"});
    }
    // Harnesses keep both streams as one, mostly without what is at their end, and no exit code.
    if (parse_json(recorded.done->result, "result").contains("combined"))
      return compare(done, "output", without_end(trajectory_.output(recorded, 0)), without_end(output.both));
    const ExecResult then = exec_result_of(recorded);
    compare(done, "exit code", std::to_string(then.shell_code()), std::to_string(now.shell_code()));
    compare_output(done, "stdout", 0, then.stdout_dropped, done.out);
    compare_output(done, "stderr", 1, then.stderr_dropped, done.err);
  }

  static std::string without_end(std::string text) {
    // A terminal ends lines in another way.
    text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
    text.erase(text.find_last_not_of(" \t\n") + 1);
    return text;
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

  // Each throws Error when the operation cannot be carried out.

  void write(const Operation& operation, ReplayedOperation& done) {
    const UniqueFd content = trajectory_.content(operation);
    if (!content) return skip(done, "the files that it brought in were not kept");
    engine_.copy_in(id_, path_of(operation), content.get(), replayed());
  }

  void read(const Operation& operation, ReplayedOperation& done) {
    const UniqueFd then = trajectory_.content(operation);
    if (!then) {
      const UniqueFd nowhere = open_file("/dev/null", O_WRONLY);
      return engine_.copy_out(id_, path_of(operation), nowhere.get(), replayed());
    }
    const UniqueFd now = unnamed_file();
    engine_.copy_out(id_, path_of(operation), now.get(), replayed());
    // Times are another, and so are the streams.
    constexpr std::size_t kMostEntries = 10'000;
    compare(done, "files", list_tar(then.get(), kMostEntries), list_tar(now.get(), kMostEntries));
  }

  void open_session(const Operation& operation, ReplayedOperation&) {
    SessionSpec spec = session_spec_of(operation);
    spec.operation = replayed();
    const std::string name = spec.name, id = engine_.open_session(id_, spec).id;
    if (!name.empty()) sessions_[name] = id;
    if (!operation.done) return;
    const std::string then = json_string_or(parse_json(operation.done->result, "result"), "session", "");
    if (!then.empty()) sessions_[then] = id;
  }
  void close_session(const Operation& operation, ReplayedOperation&) {
    const std::string session = json_string(parse_json(operation.request, "request"), "session");
    engine_.close_session(id_, session_now(session), replayed());
  }
  // Sessions get other ids than they had.
  std::string session_now(const std::string& then) const {
    const auto found = sessions_.find(then);
    return found == sessions_.end() ? then : found->second;
  }

  void http(const Operation& operation, ReplayedOperation& done) {
    const Json asked = parse_json(operation.request, "request");
    std::uint16_t port = 0;
    HttpRequest request = http_request_from(asked, port);
    request.operation = replayed();
    if (const std::uint64_t size = json_u64_or(asked, "body_bytes", 0); size > 0) {
      request.body = trajectory_.input(operation);
      if (request.body.size() != size) return skip(done, "the content that it sent was not kept");
    }
    const std::string content_then = trajectory_.output(operation, 0);
    // One byte more tells that there is more now.
    const std::size_t enough = content_then.size() + 1;
    int status = 0;
    std::string content;
    engine_.http(
        id_, port, request,
        {.head = [&](const HttpResponse& head) { status = head.status; },
         .body = [&](std::string_view part) { content += part.substr(0, enough - std::min(enough, content.size())); }});
    done.out = content;
    if (!operation.done || failed_then(operation)) return;
    const Json then = parse_json(operation.done->result, "result");
    compare(done, "status", std::to_string(json_u64_or(then, "status", 0)), std::to_string(status));
    // Where its end was not kept, the beginning is compared.
    if (json_u64_or(then, "bytes", 0) != content_then.size()) content.resize(content_then.size());
    compare(done, "content", content_then, content);
  }

  void pause(const Operation&, ReplayedOperation&) { engine_.pause(id_, replayed()); }
  void resume(const Operation&, ReplayedOperation&) { engine_.resume(id_, replayed()); }

  void signal(const Operation& operation, ReplayedOperation& done) {
    const Json request = parse_json(operation.request, "request");
    const std::string exec_id = json_string(request, "exec_id");
    const auto to = std::find_if(running_.begin(), running_.end(), [&](const Running& running) {
      return running.command && !running.ended && running.recorded->exec_id == exec_id;
    });
    if (to != running_.end())
      return engine_.signal(id_, to->command->exec_id(), static_cast<int>(json_u64(request, "signal")), replayed());
    if (failed_then(operation)) throw usage_error("no command " + quote(exec_id) + " runs");
    skip(done, "the command that it was for has ended by itself");
  }

  // What runs is told as it was then. The sandbox stays, for what was asked of it afterwards, and for --shell.
  void stop(const Operation&, ReplayedOperation&) {
    const auto is_main = [](const Running& running) {
      return running.recorded->kind == "exec" && exec_spec_of(*running.recorded).main;
    };
    const bool to_main = std::any_of(running_.begin(), running_.end(), is_main);
    const int signal = signal_number(trajectory_.header.spec.config.stop_signal);
    for (const Running& running : running_) {
      if (!running.command || running.ended || (to_main && !is_main(running))) continue;
      try {
        engine_.signal(id_, running.command->exec_id(), signal, {.recorded = false});
      } catch (const Error&) {
        // It has just ended.
      }
    }
  }

  // The layer gets no tag: that of then is somebody's.
  void snapshot(const Operation& operation, ReplayedOperation&) {
    SnapshotRequest request = snapshot_request_from(parse_json(operation.request, "request"));
    request.tag.clear();
    request.operation = replayed();
    engine_.snapshot(id_, request);
  }

  // What the forks did stands in trajectories of their own.
  void fork_again(const Operation& operation, ReplayedOperation& done) {
    const Json asked = parse_json(operation.request, "request");
    const ForkRequest then = fork_request_from(asked);
    constexpr std::size_t kMostForks = 16;
    if (then.count > kMostForks)
      return skip(done, "it made " + std::to_string(then.count) + " sandboxes, and a replay makes at most " +
                            std::to_string(kMostForks));
    ForkRequest request{.count = then.count, .name = "", .labels = {}, .operation = replayed()};
    request.labels["dsec.replay-of"] = trajectory_.header.id;
    std::vector<SandboxInfo> made;
    if (!asked.value("memory", false)) {
      made = engine_.fork(id_, request);
    } else if (auto* const branching = dynamic_cast<MemoryBranching*>(&engine_)) {
      made = branching->fork_memory(id_, request);
    } else {
      return skip(done, "memory cannot be saved here");
    }
    for (const SandboxInfo& fork : made) engine_.remove(fork.id, true);
  }

  void policy(const Operation& operation, ReplayedOperation& done) {
    // What held then tells all; earlier releases had it in the request.
    Json plan = parse_json(operation.request, "request").value("plan", Json());
    if (operation.done && !failed_then(operation))
      plan = parse_json(operation.done->result, "result").value("plan", plan);
    if (plan.is_null()) return skip(done, "what it would have come to is not recorded");
    engine_.set_network(id_, {.plan = network_plan_from_json(plan)}, replayed());
  }

  void update(const Operation& operation, ReplayedOperation&) {
    UpdateRequest request = limits_request_from(parse_json(operation.request, "request"));
    request.operation = replayed();
    if (!request.only_labels()) engine_.update(id_, request);
  }

  void screen_input(const Operation& operation, ReplayedOperation&) {
    engine_.screen_input(id_, screen_input_from(parse_json(operation.request, "request")), replayed());
  }

  // Two pictures of one screen need not be the same: a clock on it is enough.
  void screenshot(const Operation&, ReplayedOperation&) { engine_.screenshot(id_, replayed()); }

  struct Way {
    std::string_view kind;
    void (Replay::*repeat)(const Operation&, ReplayedOperation&);
  };
  static const Way kWays[15];

  static std::string path_of(const Operation& operation) {
    return bytes_of_json(parse_json(operation.request, "request").at("path"));
  }

  Engine& engine_;
  const std::string& id_;
  const Trajectory& trajectory_;
  const Normaliser& normaliser_;
  const ReplayOptions& options_;
  std::map<std::string, std::string> sessions_;  ///< by name and by the id of then: the id of now
  std::list<Running> running_;
  std::chrono::system_clock::time_point last_then_;  ///< when something began or ended, then and now
  std::chrono::steady_clock::time_point last_now_;
  ReplayReport report_;
  bool stopped_ = false;
};

const Replay::Way Replay::kWays[] = {{"write", &Replay::write},
                                     {"read", &Replay::read},
                                     {"session-open", &Replay::open_session},
                                     {"session-close", &Replay::close_session},
                                     {"http", &Replay::http},
                                     {"signal", &Replay::signal},
                                     {"stop", &Replay::stop},
                                     {"pause", &Replay::pause},
                                     {"resume", &Replay::resume},
                                     {"snapshot", &Replay::snapshot},
                                     {"fork", &Replay::fork_again},
                                     {"policy", &Replay::policy},
                                     {"update", &Replay::update},
                                     {"screen-input", &Replay::screen_input},
                                     {"screenshot", &Replay::screenshot}};

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
