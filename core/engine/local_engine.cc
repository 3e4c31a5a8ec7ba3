#include "core/engine/local_engine.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/json_bytes.h"
#include "core/base/units.h"
#include "core/base/version.h"
#include "core/engine/branching_json.h"
#include "core/engine/device_holds.h"
#include "core/engine/fork.h"
#include "core/engine/http_json.h"
#include "core/engine/lease.h"
#include "core/engine/network_log.h"
#include "core/engine/recorded_copy.h"
#include "core/engine/recording.h"
#include "core/engine/sandbox_id.h"
#include "core/engine/tree_remover.h"
#include "core/engine/written_tree.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

bool valid_sandbox_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 63 && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || c == '_' || c == '.' || c == '-'; });
}

// Of an answer that stands in its record.
constexpr std::uint64_t kInlineContent = 16 << 10;

class EngineOfThisHost final : public LocalEngine {
 public:
  EngineOfThisHost(const Home& home, LayerStore& store, LayerMounter& mounter, LayerPacker& packer, Runners runners)
      : home_(home), records_(home_), store_(store), mounter_(mounter), packer_(packer), runners_(std::move(runners)) {}

  SandboxInfo create(const SandboxSpec& wanted) override {
    SandboxSpec spec = wanted;
    // The lease shall say what the rules mean, whatever the configuration says later.
    if (spec.network == NetworkMode::Policy) resolve_presets(spec.network_plan, presets());
    Runner& runner = runner_of(spec);
    if (!spec.name.empty() && !valid_sandbox_name(spec.name))
      throw usage_error(quote(spec.name) + " is no valid name for a sandbox")
          .hint("use letters, digits, '_', '.' and '-', at most 63, the first a letter or digit");
    if (spec.layers.empty()) throw usage_error("a sandbox needs at least one layer");
    std::vector<FileLock> holds = hold_devices(home_, spec);
    runner.check(spec);

    Lease lease{home_.host_id() + random_id(16), ProcessIdentity::self(), std::chrono::system_clock::now(), spec};
    return attempt("cannot start sandbox " + (spec.name.empty() ? lease.id : quote(spec.name)), [&] {
      // From here on gc spares the layers; only then is it certain that they stay.
      SandboxRecords::Created made = records_.create(lease);
      try {
        store_.confirm(spec.layers);
        const std::vector<StoredLayer> layers = stored_layers(spec.layers);
        LayerStack stack = mounter_.open(layers, spec.accept_conflicts);
        RunnerRequest request{lease.id, made.directory, spec, std::move(stack)};
        request.holds = std::move(holds);
        if (spec.record) begin_trajectory(lease, layers, request);
        const RunnerStatus status = runner.start(std::move(request));
        remember(lease);
        return describe(lease, status);
      } catch (...) {
        const std::exception_ptr failed = std::current_exception();
        try {
          runner.reclaim(made.directory);
          engine::remove_trajectory(home_, lease.id);
          records_.remove(lease.id, spec.name);
        } catch (const Error&) {
          // The lease stays, and gc finishes what could not be removed now.
        }
        std::rethrow_exception(failed);
      }
    });
  }

  std::unique_ptr<ExecStream> exec(const std::string& id, const ExecSpec& spec) override {
    if (spec.argv.empty()) throw usage_error("no command is given");
    const auto start = [&](Runner& runner, const fs::path& directory) { return runner.exec(directory, spec); };
    if (spec.operation.op_id.empty()) return with(id, start);
    return run_once(id, {"exec", canonical_json(exec_request(spec)), spec.operation}, start);
  }
  std::unique_ptr<ExecStream> attach(const std::string& id, const std::string& exec_id,
                                     const AttachFrom& from) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.attach(directory, exec_id, from); });
  }
  std::vector<ExecInfo> commands(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.commands(directory); });
  }
  void signal(const std::string& id, const std::string& exec_id, int signo) override {
    with(id, [&](Runner& runner, const fs::path& directory) { runner.signal(directory, exec_id, signo); });
  }

  SessionInfo open_session(const std::string& id, const SessionSpec& spec) override {
    // A number would be taken for an id.
    if (!spec.name.empty() &&
        (!valid_sandbox_name(spec.name) || spec.name.find_first_not_of("0123456789") == std::string::npos))
      throw usage_error(quote(spec.name) + " is no valid name for a session")
          .hint("use letters, digits, '_', '.' and '-', at most 63, not only digits");
    SessionInfo session;
    const Operation operation = record(id, {"session-open", canonical_json(session_open_request(spec)), spec.operation},
                                       [&](Runner& runner, const fs::path& directory, Operation::Done& done) {
                                         session = runner.open_session(directory, spec);
                                         done.result = canonical_json({{"session", session.id}});
                                       });
    if (!session.id.empty()) return session;
    session.id = json_string(parse_json(operation.done->result, "result"), "session");
    session.name = spec.name;
    session.tty = spec.tty;
    for (SessionInfo& open : sessions(id))
      if (open.id == session.id) return std::move(open);
    return session;
  }
  std::unique_ptr<ExecStream> run_in_session(const std::string& id, const std::string& session,
                                             const SessionCommand& command) override {
    // No shell has a NUL in a variable or a word: each drops it, or what follows it.
    if (command.text.find('\0') != std::string::npos)
      throw usage_error("the text of the command has a NUL byte, which no shell can take")
          .hint("write it to a file of the sandbox, or give it as standard input");
    const auto start = [&](Runner& runner, const fs::path& directory) {
      return runner.run_in_session(directory, session, command);
    };
    if (command.operation.op_id.empty()) return with(id, start);
    return run_once(id, {"session", canonical_json(session_request(session, command)), command.operation}, start);
  }
  std::vector<SessionInfo> sessions(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.sessions(directory); });
  }
  void close_session(const std::string& id, const std::string& session, const OperationContext& context) override {
    record(
        id, {"session-close", canonical_json({{"session", session}}), context},
        [&](Runner& runner, const fs::path& directory, Operation::Done&) { runner.close_session(directory, session); });
  }

  UniqueFd connect(const std::string& id, std::uint16_t port) override {
    if (port == 0) throw usage_error("port 0 is none");
    return with(id, [&](Runner& runner, const fs::path& directory) {
      wake(runner, directory);
      return runner.connect(directory, port);
    });
  }
  void http(const std::string& id, std::uint16_t port, const HttpRequest& request, const HttpSink& sink) override {
    bool done_now = false;
    const Operation operation = record(id, {"http", canonical_json(http_json(request, port)), request.operation},
                                       [&](Runner& runner, const fs::path& directory, Operation::Done& done) {
                                         done_now = true;
                                         if (request.body.size() <= kInlineContent) done.stdin_data = request.body;
                                         std::uint64_t bytes = 0;
                                         int status = 0;
                                         wake(runner, directory);
                                         const UniqueFd stream = runner.connect(directory, port);
                                         http_exchange(stream.get(), request,
                                                       {.head =
                                                            [&](const HttpResponse& response) {
                                                              status = response.status;
                                                              sink.head(response);
                                                            },
                                                        .body =
                                                            [&](std::string_view part) {
                                                              bytes += part.size();
                                                              if (bytes <= kInlineContent) done.stdout_data += part;
                                                              sink.body(part);
                                                            }});
                                         if (bytes > kInlineContent) done.stdout_data.clear();
                                         done.result = canonical_json({{"status", status}, {"bytes", bytes}});
                                       });
    if (done_now) return;
    const Json result = parse_json(operation.done->result, "result");
    if (json_u64(result, "bytes") != operation.done->stdout_data.size())
      throw failure("more than " + std::to_string(kInlineContent >> 10) + " KiB of an answer are not kept")
          .context("cannot give the answer of operation " + quote(request.operation.op_id) + " again")
          .hint("ask under another op-id");
    sink.head({.status = static_cast<int>(json_u64(result, "status")), .reason = "recorded", .headers = {}});
    sink.body(operation.done->stdout_data);
  }
  std::unique_ptr<FileWatch> watch(const std::string& id, const std::string& path, bool recursive) override {
    if (!path.starts_with('/')) throw usage_error("path " + quote(path) + " is not absolute");
    return with(id,
                [&](Runner& runner, const fs::path& directory) { return runner.watch(directory, path, recursive); });
  }

  std::vector<SandboxInfo> list(const ListFilter& filter) override {
    std::vector<SandboxInfo> found;
    for (const std::string& id : records_.ids()) {
      std::optional<SandboxInfo> info = read(id);
      if (!info || !matches(*info, filter)) continue;
      found.push_back(std::move(*info));
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.created > b.created; });
    return found;
  }

  SandboxInfo inspect(const std::string& id) override {
    const std::string resolved = records_.resolve(id);
    if (std::optional<SandboxInfo> info = read(resolved)) return *std::move(info);
    throw usage_error("sandbox " + resolved + " is being removed");
  }

  SandboxInfo wait(const std::string& id, std::optional<std::chrono::milliseconds> timeout) override {
    const std::string resolved = records_.resolve(id);
    with(resolved, [&](Runner& runner, const fs::path& directory) {
      if (!runner.wait(directory, timeout)) throw failure("sandbox " + resolved + " did not end in time");
    });
    // One that was to go at its end may have gone meanwhile, and is told of by its trajectory.
    if (std::optional<SandboxInfo> info = read(resolved)) return *std::move(info);
    return ended_sandbox(Trajectory::read(home_.trajectories() / resolved));
  }

  void stop(const std::string& id, std::chrono::milliseconds grace) override {
    with(id, [&](Runner& runner, const fs::path& directory) { runner.stop(directory, grace); });
  }

  void remove(const std::string& id, bool force) override {
    const std::string resolved = records_.resolve(id);
    attempt("cannot remove sandbox " + resolved, [&] {
      const fs::path directory = records_.directory(resolved);
      const FileLock lock = lock_for_change(directory);
      const std::optional<Known> sandbox = known(resolved);
      if (!sandbox) return records_.remove(resolved, "");
      Runner& runner = sandbox->runner;
      const SandboxState state = runner.status(directory).state;
      const bool live = state == SandboxState::Running || state == SandboxState::Paused;
      if (live && !force)
        throw usage_error("it is " + std::string(to_string(state)))
            .hint("dsec stop " + resolved + " first, or dsec rm --force");
      if (live) runner.stop(directory, std::chrono::milliseconds(0));
      runner.release(directory);
      remover_.remove(records_.take_away(resolved, sandbox->name));
      forget(resolved);
    });
  }

  void pause(const std::string& id, const OperationContext& context) override {
    const SandboxInfo info = inspect(id);
    attempt("cannot pause sandbox " + info.id, [&] {
      record(info, {"pause", "{}", context},
             [&](Operation::Done&) { runner_of(info.spec).pause(records_.directory(info.id)); });
    });
  }
  void resume(const std::string& id, const OperationContext& context) override {
    const SandboxInfo info = inspect(id);
    attempt("cannot resume sandbox " + info.id, [&] {
      record(info, {"resume", "{}", context},
             [&](Operation::Done&) { runner_of(info.spec).resume(records_.directory(info.id)); });
    });
  }

  SandboxInfo update(const std::string& id, const UpdateRequest& request) override {
    const SandboxInfo info = inspect(id);
    return attempt("cannot update sandbox " + info.id, [&] {
      record(info, {"update", canonical_json(update_json(request)), request.operation},
             [&](Operation::Done& done) { done.result = canonical_json(change(info.id, request)); });
      return inspect(info.id);
    });
  }

  Snapshot snapshot(const std::string& id, const SnapshotRequest& request) override {
    const SandboxInfo info = inspect(id);
    return attempt("cannot make layer " + request.name.str() + " of sandbox " + info.id, [&] {
      const LayerKind kind = request.name.kind;
      if (kind != LayerKind::Snapshot && kind != LayerKind::Workspace)
        throw usage_error("what a sandbox has changed can only be a snapshot or a workspace");
      std::optional<Snapshot> made;
      const Operation operation = record(info, {"snapshot", canonical_json(snapshot_json(request)), request.operation},
                                         [&](Operation::Done& done) {
                                           made = make_snapshot(info, request);
                                           done.result = canonical_json(snapshot_json(*made));
                                         });
      return made ? *std::move(made) : snapshot_from(parse_json(operation.done->result, "of the record"));
    });
  }

  std::vector<SandboxInfo> fork(const std::string& id, const ForkRequest& request) override {
    if (request.count == 0) throw usage_error("at least one fork must be asked for");
    const SandboxInfo parent = inspect(id);
    return attempt("cannot fork sandbox " + parent.id, [&] {
      std::vector<SandboxInfo> made;
      const Operation operation =
          record(parent, {"fork", canonical_json(fork_json(request)), request.operation}, [&](Operation::Done& done) {
            made = make_forks(parent, request);
            done.result = canonical_json(forks_json(made));
          });
      if (made.empty())
        for (const std::string& fork : forks_from(parse_json(operation.done->result, "of the record")))
          made.push_back(inspect(fork));
      return made;
    });
  }

  void logs(const std::string& id, const LogOptions& options, const LogSink& sink) override {
    with(id, [&](Runner& runner, const fs::path& directory) { runner.logs(directory, options, sink); });
  }
  SandboxStats stats(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.stats(directory); });
  }
  std::vector<Change> diff(const std::string& id) override {
    const SandboxInfo info = awake(id);
    return runner_of(info.spec).diff(records_.directory(info.id), opener(info.spec));
  }
  std::vector<FileChange> diff_stat(const std::string& id) override {
    const SandboxInfo info = awake(id);
    return attempt("cannot compare the files of sandbox " + info.id,
                   [&] { return packer_.compare(still_tree(info).tree()); });
  }
  void diff_content(const std::string& id, DiffForm form, int fd) override {
    const SandboxInfo info = awake(id);
    attempt("cannot write what sandbox " + info.id + " has changed",
            [&] { packer_.write(still_tree(info).tree(), form, fd); });
  }
  UniqueFd open_writable_layer(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.open_writable_layer(directory); });
  }
  void copy_out(const std::string& id, const std::string& path, int fd, const OperationContext& context) override {
    const SandboxInfo info = awake(id);
    Runner& runner = runner_of(info.spec);
    const auto copy = [&](int to) { runner.copy_out(records_.directory(info.id), opener(info.spec), path, to); };
    if (!context.recorded || !info.spec.record) return copy(fd);
    record_copy_out(recording_place(info), path, fd, context, copy);
  }
  void copy_in(const std::string& id, const std::string& path, int fd, const OperationContext& context) override {
    const SandboxInfo info = awake(id);
    Runner& runner = runner_of(info.spec);
    const auto copy = [&](int from) { runner.copy_in(records_.directory(info.id), opener(info.spec), path, from); };
    if (!context.recorded || !info.spec.record) return copy(fd);
    record_copy_in(recording_place(info), path, fd, context, copy);
  }

  std::vector<TrajectoryInfo> trajectories(std::vector<std::string>& problems) override {
    return list_trajectories(home_, problems);
  }
  Trajectory trajectory(const std::string& id) override {
    return Trajectory::read(home_.trajectories() / trajectory_id(id));
  }
  void remove_trajectory(const std::string& id) override {
    const std::string found = trajectory_id(id);
    if (fs::exists(records_.directory(found)))
      throw usage_error("sandbox " + found + " is still there, and its trajectory with it").hint("dsec rm " + found);
    engine::remove_trajectory(home_, found);
  }
  NetworkReport network(const std::string& id) override {
    return with(id, [&](Runner& runner, const fs::path& directory) { return runner.network(directory); });
  }
  void set_network(const std::string& id, const NetworkPlan& wanted, const OperationContext& context) override {
    NetworkPlan plan = wanted;
    resolve_presets(plan, presets());
    const SandboxInfo info = inspect(id);
    record(info, {"policy", canonical_json({{"plan", to_json(plan)}}), context},
           [&](Operation::Done&) { runner_of(info.spec).set_network(records_.directory(info.id), plan); });
  }
  std::string network_log(const std::string& id, std::uint64_t from) override {
    const std::string found = trajectory_id(id);
    // What is linked beside the trajectory is the same file, and outlives the sandbox.
    const fs::path kept = home_.trajectories() / found;
    if (fs::exists(kept / kNetworkLog)) return read_network_lines(kept, from);
    return with(found, [&](Runner& runner, const fs::path& directory) { return runner.network_log(directory, from); });
  }

 private:
  static NetworkPresets presets() { return Config::load().presets; }

  Runner& runner_of(const SandboxSpec& spec) const {
    const auto found = runners_.find(spec.backend);
    if (found == runners_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, runner] : runners_) names.push_back(name);
      Error error = usage_error("backend " + quote(spec.backend) + " is not available");
      for (const std::string& name : names) error.hint("use --backend " + name);
      throw error;
    }
    return found->second;
  }

  /// What never changes in a sandbox's life, so that its lease is not read for every command.
  struct Known {
    std::string name;
    std::reference_wrapper<Runner> runner;
  };
  static constexpr std::size_t kMostKnown = 10'000;

  Known remember(const Lease& lease) {
    const Known sandbox{lease.spec.name, runner_of(lease.spec)};
    const std::lock_guard lock(known_mutex_);
    if (known_.size() >= kMostKnown) known_.clear();
    known_.insert_or_assign(lease.id, sandbox);
    return sandbox;
  }
  void forget(const std::string& id) {
    const std::lock_guard lock(known_mutex_);
    known_.erase(id);
  }
  // Empty when it is being removed.
  std::optional<Known> known(const std::string& id) {
    {
      const std::lock_guard lock(known_mutex_);
      if (const auto found = known_.find(id); found != known_.end()) return found->second;
    }
    const std::optional<Lease> lease = records_.lease(id);
    if (!lease) return std::nullopt;
    return remember(*lease);
  }

  template <typename Call>
  auto with(const std::string& id, Call&& call) -> std::invoke_result_t<Call, Runner&, const fs::path&> {
    const std::string resolved = records_.resolve(id);
    const std::optional<Known> sandbox = known(resolved);
    if (!sandbox) throw usage_error("sandbox " + resolved + " is being removed");
    return std::forward<Call>(call)(sandbox->runner.get(), records_.directory(resolved));
  }

  void begin_trajectory(const Lease& lease, const std::vector<StoredLayer>& layers, RunnerRequest& request) {
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

  // Sandboxes of an earlier release have none.
  fs::path trajectory_of(const std::string& id) const {
    const fs::path directory = home_.trajectories() / id;
    return fs::exists(directory / kTrajectoryLog) ? directory : fs::path();
  }

  RecordingPlace recording_place(const SandboxInfo& info) {
    return {runner_of(info.spec), records_.directory(info.id), trajectory_of(info.id)};
  }

  // A sandbox's id, its beginning or its name; the sandbox may be gone.
  std::string trajectory_id(const std::string& text) {
    try {
      return records_.resolve(text);
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

  // Carries out `work` between the two records of a request that this process carries out itself.
  Operation record(const std::string& id, const OperationRequest& request,
                   const std::function<void(Runner&, const fs::path&, Operation::Done&)>& work) {
    const SandboxInfo info = inspect(id);
    Runner& runner = runner_of(info.spec);
    RecordingPlace place = recording_place(info);
    // What cannot be done any more is no operation.
    if (!info.keeper_pid && request.context.op_id.empty()) place.trajectory.clear();
    return record_operation(
        place, request, [&](std::uint64_t, Operation::Done& done) { work(runner, records_.directory(info.id), done); });
  }

  // A command that is recorded by the keeper, which `start` returns nothing for when it knows the op_id.
  using Start = std::function<std::unique_ptr<ExecStream>(Runner&, const fs::path&)>;
  std::unique_ptr<ExecStream> run_once(const std::string& id, const OperationRequest& asked, const Start& start) {
    const std::string& op_id = asked.context.op_id;
    check_op_id(op_id);
    std::optional<SandboxInfo> info;
    fs::path place;
    try {
      info = inspect(id);
      place = trajectory_of(info->id);
    } catch (const Error&) {
      // It may have been removed, and its trajectory be left.
      const std::exception_ptr unknown = std::current_exception();
      try {
        place = home_.trajectories() / trajectory_id(id);
      } catch (const Error&) {
        std::rethrow_exception(unknown);
      }
      if (!find_operation(place, op_id)) std::rethrow_exception(unknown);
    }
    if (place.empty())
      throw usage_error("nothing is recorded of sandbox " + id).hint("without --op-id the command can be executed");
    const auto known = [&] {
      std::optional<Operation> operation = find_operation(place, op_id);
      if (operation) check_same_request(*operation, asked.kind, asked.request);
      return operation;
    };
    const bool live = info && info->keeper_pid;
    std::optional<Operation> operation;
    if (live) {
      if (auto stream = start(runner_of(info->spec), records_.directory(info->id))) return stream;
      operation = known();
      if (operation && !operation->done) {
        try {
          return runner_of(info->spec).attach(records_.directory(info->id), operation->exec_id, {});
        } catch (const Error&) {
          // It has just ended, or its keeper has.
          operation = known();
        }
      }
    } else {
      operation = known();
    }
    if (operation) return recorded_command(Trajectory{place, {}, {}, {}}, *operation);
    return start(runner_of(info->spec), records_.directory(info->id));
  }

  // Carries out an operation between its records, where the sandbox is recorded.
  Operation record(const SandboxInfo& info, const OperationRequest& request,
                   const std::function<void(Operation::Done& done)>& work) {
    if (request.context.recorded && info.spec.record)
      return record_operation(recording_place(info), request,
                              [&](std::uint64_t, Operation::Done& done) { work(done); });
    Operation operation;
    work(*(operation.done = Operation::Done{}));
    return operation;
  }

  // What the lease says afterwards, as it is recorded.
  Json change(const std::string& id, const UpdateRequest& request) {
    const fs::path directory = records_.directory(id);
    const FileLock lock = lock_for_change(directory);
    std::optional<Lease> lease = records_.lease(id);
    if (!lease) throw usage_error("it is being removed");
    SandboxSpec after = updated(lease->spec, request);
    if (!request.only_labels()) {
      const SandboxInfo info = describe(*lease, runner_of(lease->spec).status(directory));
      if (info.state != SandboxState::Running && info.state != SandboxState::Paused)
        throw usage_error("it is " + std::string(to_string(info.state)) +
                          (info.reason.empty() ? "" : ": " + info.reason))
            .hint("only its labels can be changed");
      const auto age = std::chrono::system_clock::now() - lease->created;
      if (request.lifetime && after.lifetime && age >= *after.lifetime)
        throw usage_error("it is " + format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(age)) +
                          " old, and its lifetime counts from its creation")
            .hint("a longer lifetime, or dsec stop " + id);
      runner_of(lease->spec).update(directory, lease->spec, after);
    }
    lease->spec = after;
    lease->replace(directory);
    Json result = {{"limits", to_json(after.limits)}, {"labels", after.labels}};
    return result;
  }

  Snapshot make_snapshot(const SandboxInfo& info, const SnapshotRequest& request) {
    const PackRequest pack{request.name, request.tag, request.scrub, {}, request.labels};
    const StillTree still = still_tree(info);
    PackedLayer made = request.name.kind == LayerKind::Snapshot ? packer_.pack_snapshot(still.tree(), pack)
                                                                : packer_.pack_workspace(still.tree(), pack);
    return Snapshot{made.layer.digest, digests(made.stack), made.layer.manifest.total_size(), made.collapsed,
                    std::move(made.warnings)};
  }

  std::vector<SandboxInfo> make_forks(const SandboxInfo& parent, const ForkRequest& request) {
    std::vector<Digest> layers = parent.spec.layers;
    std::optional<PackedLayer> shared;  // its hold keeps gc away until the leases of the forks do
    if (!parent.spec.read_only) {
      // The same changes make the same layer, whoever they are forked from.
      shared = packer_.pack_snapshot(still_tree(parent).tree(),
                                     {LayerName{LayerKind::Snapshot, "fork"}, "", false, random_seed_files(), {}});
      layers = digests(shared->stack);
    }
    std::vector<SandboxInfo> made;
    try {
      const std::string base = request.name.empty() ? parent.spec.name : request.name;
      for (std::size_t number = 1; made.size() < request.count; ++number) {
        const std::string name = base.empty() ? "" : base + "-" + std::to_string(number);
        if (!name.empty() && records_.has_name(name)) continue;
        made.push_back(create(fork_spec(parent, request, layers, name)));
      }
    } catch (...) {
      const std::exception_ptr failed = std::current_exception();
      for (const SandboxInfo& each : made) {
        try {
          remove(each.id, true);
        } catch (const Error&) {
          // Somebody else may use it already; it tells of itself in ps.
        }
      }
      std::rethrow_exception(failed);
    }
    return made;
  }

  // For operations that reach its files without its keeper.
  SandboxInfo awake(const std::string& id) {
    SandboxInfo info = inspect(id);
    wake(runner_of(info.spec), records_.directory(info.id));
    return info;
  }
  static void wake(Runner& runner, const fs::path& directory) {
    if (runner.status(directory).state == SandboxState::Paused) runner.resume(directory);
  }

  StillTree still_tree(const SandboxInfo& info) {
    if (info.spec.read_only) throw usage_error("it has no writable layer, and so no changes");
    std::vector<StoredLayer> layers = stored_layers(info.spec.layers);
    const LayerStack stack = mounter_.open(layers, info.spec.accept_conflicts);
    return StillTree(runner_of(info.spec), records_.directory(info.id), std::move(layers), stack);
  }

  static std::vector<Digest> digests(const std::vector<StoredLayer>& layers) {
    std::vector<Digest> result;
    for (const StoredLayer& layer : layers) result.push_back(layer.digest);
    return result;
  }

  // Waits a little: whoever makes a process at this moment shares the lock with it until its exec.
  static FileLock lock_for_change(const fs::path& directory) {
    constexpr int kTries = 200;
    for (int tries = 0; tries < kTries; ++tries) {
      if (FileLock lock = FileLock::try_lock(directory / "lock", FileLock::Mode::Exclusive)) return lock;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    throw failure("another process is changing it right now").hint("try again");
  }

  // Empty when the sandbox disappears while it is looked at.
  std::optional<SandboxInfo> read(const std::string& id) const {
    const fs::path directory = records_.directory(id);
    const std::optional<Lease> lease = records_.lease(id);
    if (!lease) return std::nullopt;
    SandboxInfo info = describe(*lease, runner_of(lease->spec).status(directory));
    // Without a state it may be one that is being made, or one that was removed after its lease was read.
    if (info.state == SandboxState::Orphaned && !records_.lease(id)) return std::nullopt;
    return info;
  }

  static SandboxInfo ended_sandbox(const Trajectory& trajectory) {
    SandboxInfo info{.id = trajectory.header.id, .spec = trajectory.header.spec, .state = SandboxState::Stopped};
    info.created = trajectory.header.created;
    info.reason = "it has ended and was removed";
    for (const Operation& operation : trajectory.operations) {
      if (operation.kind != "exec" || !exec_spec_of(operation).main || !operation.done) continue;
      info.command = exec_spec_of(operation).argv;
      info.main_result = exec_result_of(operation);
      info.ended = operation.done->time;
    }
    return info;
  }

  static bool matches(const SandboxInfo& info, const ListFilter& filter) {
    const bool ended = info.state == SandboxState::Stopped || info.state == SandboxState::Failed;
    if (ended && !filter.all) return false;
    return std::all_of(filter.labels.begin(), filter.labels.end(), [&](const auto& wanted) {
      const auto found = info.spec.labels.find(wanted.first);
      return found != info.spec.labels.end() && (wanted.second.empty() || wanted.second == found->second);
    });
  }

  // Manifests never change, so a process that makes many sandboxes of one environment asks the store once.
  OpenLayers opener(const SandboxSpec& spec) {
    return [this, layers = spec.layers, accept = spec.accept_conflicts] {
      return mounter_.open(stored_layers(layers), accept);
    };
  }

  std::vector<StoredLayer> stored_layers(const std::vector<Digest>& digests) {
    const std::lock_guard lock(cache_mutex_);
    std::vector<StoredLayer> layers;
    for (const Digest& digest : digests) {
      auto found = cache_.find(digest);
      if (found == cache_.end() || !found->second.trusted)
        found = cache_.insert_or_assign(digest, store_.get(LayerRef::of(digest))).first;
      layers.push_back(found->second);
    }
    return layers;
  }

  const Home home_;
  SandboxRecords records_;
  LayerStore& store_;
  LayerMounter& mounter_;
  LayerPacker& packer_;
  const Runners runners_;
  TreeRemover remover_;
  std::mutex known_mutex_;
  std::unordered_map<std::string, Known> known_;  ///< by id, those of the sandboxes that were asked for
  std::mutex cache_mutex_;
  std::unordered_map<Digest, StoredLayer> cache_;
};

}  // namespace

std::unique_ptr<LocalEngine> make_local_engine(const Home& home, LayerStore& store, LayerMounter& mounter,
                                               LayerPacker& packer, Runners runners) {
  return std::make_unique<EngineOfThisHost>(home, store, mounter, packer, std::move(runners));
}

}  // namespace dsec::engine
