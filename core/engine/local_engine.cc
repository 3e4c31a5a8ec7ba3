#include "core/engine/local_engine.h"

#include <algorithm>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/engine/branching_json.h"
#include "core/engine/creation_keys.h"
#include "core/engine/device_holds.h"
#include "core/engine/fork.h"
#include "core/engine/lease.h"
#include "core/engine/memory_saver.h"
#include "core/engine/memory_snapshots.h"
#include "core/engine/network_log.h"
#include "core/engine/recorded_copy.h"
#include "core/engine/recorded_http.h"
#include "core/engine/recorded_screen.h"
#include "core/engine/recorder.h"
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

class EngineOfThisHost final : public LocalEngine, public MemoryBranching {
 public:
  EngineOfThisHost(const Home& home, LayerStore& store, LayerMounter& mounter, LayerPacker& packer, Runners runners)
      : home_(home),
        sandboxes_(home_, std::move(runners)),
        recorder_(home_, sandboxes_),
        store_(store),
        mounter_(mounter),
        packer_(packer) {}

  StoredLayer layer(const LayerRef& ref) override { return store_.get(ref); }

  SandboxInfo create(const SandboxSpec& spec) override {
    return make(spec, [](const std::string&) {});
  }

  MadeSandbox create_once(const SandboxSpec& spec, const std::string& key) override {
    check_op_id(key);
    for (;;) {
      auto keys = std::make_unique<CreationKeys>(home_);
      const std::optional<std::string> id = keys->find(key);
      if (!id)
        return {make(spec,
                     [&](const std::string& made) {
                       keys->take(key, made);
                       keys.reset();
                     }),
                true};
      keys.reset();
      if (std::optional<SandboxInfo> made = made_under(key, *id)) {
        check_same_sandbox(key, *id, spec);
        return {*std::move(made), false};
      }
    }
  }

  std::unique_ptr<ExecStream> exec(const std::string& id, const ExecSpec& spec) override {
    if (spec.argv.empty()) throw usage_error("no command is given");
    const auto start = [&](Runner& runner, const fs::path& directory) { return runner.exec(directory, spec); };
    if (spec.operation.op_id.empty()) return sandboxes_.with(id, start);
    return recorder_.run_once(id, {"exec", canonical_json(exec_request(spec)), spec.operation}, start);
  }
  std::unique_ptr<ExecStream> attach(const std::string& id, const std::string& exec_id,
                                     const AttachFrom& from) override {
    return sandboxes_.with(
        id, [&](Runner& runner, const fs::path& directory) { return runner.attach(directory, exec_id, from); });
  }
  std::vector<ExecInfo> commands(const std::string& id) override {
    return sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) { return runner.commands(directory); });
  }
  void signal(const std::string& id, const std::string& exec_id, int signo, const OperationContext& context) override {
    Recorder::record(
        living(id, context), {"signal", canonical_json({{"exec_id", exec_id}, {"signal", signo}}), context},
        [&](Runner& runner, const fs::path& directory, Operation::Done&) { runner.signal(directory, exec_id, signo); });
  }

  SessionInfo open_session(const std::string& id, const SessionSpec& spec) override {
    // A number would be taken for an id.
    if (!spec.name.empty() &&
        (!valid_sandbox_name(spec.name) || spec.name.find_first_not_of("0123456789") == std::string::npos))
      throw usage_error(quote(spec.name) + " is no valid name for a session")
          .hint("use letters, digits, '_', '.' and '-', at most 63, not only digits");
    SessionInfo session;
    const Subject subject = living(id, spec.operation);
    const Operation operation =
        Recorder::record(subject, {"session-open", canonical_json(session_open_request(spec)), spec.operation},
                         [&](Runner& runner, const fs::path& directory, Operation::Done& done) {
                           session = runner.open_session(directory, spec);
                           done.result = canonical_json({{"session", session.id}});
                         });
    if (!session.id.empty()) return session;
    session.id = json_string(parse_json(operation.done->result, "result"), "session");
    session.name = spec.name;
    session.tty = spec.tty;
    if (!subject.info || !subject.info->keeper_pid) return session;
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
    if (command.operation.op_id.empty()) return sandboxes_.with(id, start);
    return recorder_.run_once(id, {"session", canonical_json(session_request(session, command)), command.operation},
                              start);
  }
  std::vector<SessionInfo> sessions(const std::string& id) override {
    return sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) { return runner.sessions(directory); });
  }
  void close_session(const std::string& id, const std::string& session, const OperationContext& context) override {
    Recorder::record(
        living(id, context), {"session-close", canonical_json({{"session", session}}), context},
        [&](Runner& runner, const fs::path& directory, Operation::Done&) { runner.close_session(directory, session); });
  }

  UniqueFd connect(const std::string& id, std::uint16_t port) override {
    if (port == 0) throw usage_error("port 0 is none");
    return sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) {
      wake(runner, directory);
      return runner.connect(directory, port);
    });
  }
  void http(const std::string& id, std::uint16_t port, const HttpRequest& request, const HttpSink& sink) override {
    const Subject subject = living(id, request.operation);
    const std::uint64_t limit = subject.info ? subject.info->spec.limits.output : 0;
    record_http(subject.place, port, request, limit, sink, [&] {
      wake(*subject.place.runner, subject.place.sandbox);
      return subject.place.runner->connect(subject.place.sandbox, port);
    });
  }
  std::unique_ptr<FileWatch> watch(const std::string& id, const std::string& path, bool recursive) override {
    if (!path.starts_with('/')) throw usage_error("path " + quote(path) + " is not absolute");
    return sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) {
      wake(runner, directory);
      return runner.watch(directory, path, recursive);
    });
  }

  std::string screenshot(const std::string& id, const OperationContext& context) override {
    const Subject subject = living(id, context);
    const std::uint64_t limit = subject.info ? subject.info->spec.limits.output : 0;
    return record_screenshot(subject.place, limit, context, [&] {
      wake(*subject.place.runner, subject.place.sandbox);
      return screens_of(*subject.place.runner).screenshot(subject.place.sandbox);
    });
  }
  void screen_input(const std::string& id, const ScreenInput& input, const OperationContext& context) override {
    Recorder::record(living(id, context), {"screen-input", canonical_json(to_json(input)), context},
                     [&](Runner& runner, const fs::path& directory, Operation::Done&) {
                       wake(runner, directory);
                       screens_of(runner).screen_input(directory, input);
                     });
  }
  UniqueFd connect_screen(const std::string& id) override {
    return sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) {
      wake(runner, directory);
      return screens_of(runner).connect_screen(directory);
    });
  }

  std::vector<SandboxInfo> list(const ListFilter& filter) override { return sandboxes_.list(filter); }
  SandboxInfo inspect(const std::string& id) override { return sandboxes_.inspect(id); }

  SandboxInfo wait(const std::string& id, std::optional<std::chrono::milliseconds> timeout) override {
    const std::string resolved = sandboxes_.records().resolve(id);
    sandboxes_.with(resolved, [&](Runner& runner, const fs::path& directory) {
      if (!runner.wait(directory, timeout)) throw failure("sandbox " + resolved + " did not end in time");
    });
    // One that was to go at its end may have gone meanwhile, and is told of by its trajectory.
    if (std::optional<SandboxInfo> info = sandboxes_.read(resolved)) return *std::move(info);
    return recorder_.ended_sandbox(resolved);
  }

  void stop(const std::string& id, std::chrono::milliseconds grace, const OperationContext& context) override {
    Recorder::record(
        living(id, context), {"stop", canonical_json({{"grace_ms", grace.count()}}), context},
        [&](Runner& runner, const fs::path& directory, Operation::Done&) { runner.stop(directory, grace); });
  }

  void remove(const std::string& id, bool force) override {
    SandboxRecords& records = sandboxes_.records();
    const std::string resolved = records.resolve(id);
    attempt("cannot remove sandbox " + resolved, [&] {
      const fs::path directory = records.directory(resolved);
      const FileLock lock = sandboxes_.lock_for_change(resolved);
      const auto sandbox = sandboxes_.known(resolved);
      if (!sandbox) return records.remove(resolved, "");
      Runner& runner = sandbox->runner;
      const SandboxState state = runner.status(directory).state;
      const bool live = state == SandboxState::Running || state == SandboxState::Paused;
      if (live && !force)
        throw usage_error("it is " + std::string(to_string(state)))
            .hint("dsec stop " + resolved + " first, or dsec rm --force");
      if (live) runner.stop(directory, std::chrono::milliseconds(0));
      runner.release(directory);
      remover_.remove(records.take_away(resolved, sandbox->name));
      sandboxes_.forget(resolved);
    });
  }

  void pause(const std::string& id, const OperationContext& context) override {
    const Subject subject = recorder_.subject(id, context);
    attempt("cannot pause sandbox " + subject.id, [&] {
      Recorder::record(subject, {"pause", "{}", context},
                       [](Runner& runner, const fs::path& directory, Operation::Done&) { runner.pause(directory); });
    });
  }
  void resume(const std::string& id, const OperationContext& context) override {
    const Subject subject = recorder_.subject(id, context);
    attempt("cannot resume sandbox " + subject.id, [&] {
      Recorder::record(subject, {"resume", "{}", context},
                       [](Runner& runner, const fs::path& directory, Operation::Done&) { runner.resume(directory); });
    });
  }

  SandboxInfo update(const std::string& id, const UpdateRequest& request) override {
    const Subject subject = recorder_.subject(id, request.operation);
    return attempt("cannot update sandbox " + subject.id, [&] {
      Recorder::record(subject, {"update", canonical_json(update_json(request)), request.operation},
                       [&](Runner&, const fs::path&, Operation::Done& done) {
                         done.result = canonical_json(change(subject.id, request));
                       });
      return subject.info ? inspect(subject.id) : recorder_.ended_sandbox(subject.id);
    });
  }

  Snapshot snapshot(const std::string& id, const SnapshotRequest& request) override {
    const Subject subject = recorder_.subject(id, request.operation);
    return attempt("cannot make layer " + request.name.str() + " of sandbox " + subject.id, [&] {
      const LayerKind kind = request.name.kind;
      if (kind != LayerKind::Snapshot && kind != LayerKind::Workspace)
        throw usage_error("what a sandbox has changed can only be a snapshot or a workspace");
      std::optional<Snapshot> made;
      const Operation operation =
          Recorder::record(subject, {"snapshot", canonical_json(snapshot_json(request)), request.operation},
                           [&](Runner&, const fs::path&, Operation::Done& done) {
                             made = make_snapshot(subject.info.value(), request);
                             done.result = canonical_json(snapshot_json(*made));
                           });
      return made ? *std::move(made) : snapshot_from(parse_json(operation.done->result, "of the record"));
    });
  }

  std::vector<SandboxInfo> fork(const std::string& id, const ForkRequest& request) override {
    return fork_recorded(id, request, fork_json(request),
                         [&](const SandboxInfo& parent) { return make_forks(parent, request); });
  }

  std::vector<SandboxInfo> fork_memory(const std::string& id, const ForkRequest& request) override {
    Json json = fork_json(request);
    json["memory"] = true;
    return fork_recorded(id, request, json, [&](const SandboxInfo& parent) {
      // What has begun from it has its files open, and needs their names no more.
      const MemorySnapshots::Draft draft = save_memory(as_it_is_now(parent), "");
      return go_on_from(draft.snapshot(), request);
    });
  }

  MemorySnapshot save(const std::string& id, const std::string& name, const OperationContext& context) override {
    const Subject subject = recorder_.subject(id, context);
    const MemorySnapshots snapshots(home_);
    return attempt("cannot save the memory of sandbox " + subject.id, [&] {
      std::optional<MemorySnapshot> made;
      Recorder::record(subject, {"save", canonical_json({{"name", name}}), context},
                       [&](Runner&, const fs::path&, Operation::Done& done) {
                         snapshots.check_name(name);
                         made = save_memory(as_it_is_now(subject.info.value()), name).keep();
                         done.result = canonical_json({{"name", made->name}, {"bytes", made->bytes}});
                       });
      return made ? *std::move(made) : snapshots.find(name);
    });
  }

  std::vector<SandboxInfo> restore(const std::string& name, const ForkRequest& request) override {
    if (request.count == 0) throw usage_error("at least one sandbox must be asked for");
    return attempt("cannot go on from the memory snapshot " + quote(name),
                   [&] { return go_on_from(MemorySnapshots(home_).find(name), request); });
  }

  void logs(const std::string& id, const LogOptions& options, const LogSink& sink) override {
    sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) { runner.logs(directory, options, sink); });
  }
  SandboxStats stats(const std::string& id) override {
    return sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) { return runner.stats(directory); });
  }
  std::vector<Change> diff(const std::string& id) override {
    const SandboxInfo info = awake(id);
    return sandboxes_.runner_of(info.spec).diff(sandboxes_.directory(info.id), opener(info.spec));
  }
  std::vector<FileChange> diff_stat(const std::string& id) override {
    const SandboxInfo info = awake(id);
    return attempt("cannot compare the files of sandbox " + info.id,
                   [&] { return packer_.compare(still_tree(info, WrittenBelow::Included).tree()); });
  }
  void diff_content(const std::string& id, DiffForm form, int fd) override {
    const SandboxInfo info = awake(id);
    attempt("cannot write what sandbox " + info.id + " has changed",
            [&] { packer_.write(still_tree(info, WrittenBelow::Included).tree(), form, fd); });
  }
  UniqueFd open_writable_layer(const std::string& id) override {
    return sandboxes_.with(
        id, [&](Runner& runner, const fs::path& directory) { return runner.open_writable_layer(directory); });
  }
  void copy_out(const std::string& id, const std::string& path, int fd, const OperationContext& context) override {
    const Subject subject = recorder_.subject(id, context);
    record_copy_out(subject.place, path, fd, context, [&](int to) {
      wake(*subject.place.runner, subject.place.sandbox);
      subject.place.runner->copy_out(subject.place.sandbox, opener(subject.info->spec), path, to);
    });
  }
  void copy_in(const std::string& id, const std::string& path, int fd, const OperationContext& context) override {
    const Subject subject = recorder_.subject(id, context);
    record_copy_in(subject.place, path, fd, context, [&](int from) {
      wake(*subject.place.runner, subject.place.sandbox);
      subject.place.runner->copy_in(subject.place.sandbox, opener(subject.info->spec), path, from);
    });
  }

  std::vector<TrajectoryInfo> trajectories(std::vector<std::string>& problems) override {
    return list_trajectories(home_, problems);
  }
  Trajectory trajectory(const std::string& id) override {
    const std::string found = recorder_.trajectory_id(id);
    // Asked for first: what ends in between has ended.
    const bool live = runs(found);
    Trajectory trajectory = Trajectory::read(home_.trajectories() / found);
    trajectory.live = live;
    return trajectory;
  }
  std::optional<Operation> recorded(const std::string& id, const std::string& op_id) override {
    return recorder_.recorded(id, op_id);
  }
  void remove_trajectory(const std::string& id) override {
    const std::string found = recorder_.trajectory_id(id);
    if (fs::exists(sandboxes_.directory(found)))
      throw usage_error("sandbox " + found + " is still there, and its trajectory with it").hint("dsec rm " + found);
    engine::remove_trajectory(home_, found);
  }
  NetworkReport network(const std::string& id) override {
    return sandboxes_.with(id, [&](Runner& runner, const fs::path& directory) { return runner.network(directory); });
  }
  NetworkPlan set_network(const std::string& id, const NetworkChange& change,
                          const OperationContext& context) override {
    const Operation operation =
        Recorder::record(living(id, context), {"policy", canonical_json(to_json(change)), context},
                         [&](Runner& runner, const fs::path& directory, Operation::Done& done) {
                           NetworkPlan plan = changed(runner.network(directory).plan.value_or(NetworkPlan{}), change);
                           resolve_presets(plan, presets());
                           runner.set_network(directory, plan);
                           done.result = canonical_json({{"plan", to_json(plan)}});
                         });
    return network_plan_from_json(parse_json(operation.done->result, "of the record").value("plan", Json::object()));
  }
  std::string network_log(const std::string& id, std::uint64_t from) override {
    const std::string found = recorder_.trajectory_id(id);
    // What is linked beside the trajectory is the same file, and outlives the sandbox.
    const fs::path kept = home_.trajectories() / found;
    if (fs::exists(kept / kNetworkLog)) return read_network_lines(kept, from);
    return sandboxes_.with(
        found, [&](Runner& runner, const fs::path& directory) { return runner.network_log(directory, from); });
  }

 private:
  static NetworkPresets presets() { return Config::load().presets; }

  static Screens& screens_of(Runner& runner) {
    if (auto* const screens = dynamic_cast<Screens*>(&runner)) return *screens;
    throw usage_error("the sandbox has no screen").hint("--backend fullvm makes one that has");
  }

  LayerStack stack_for(const Runner& runner, const std::vector<StoredLayer>& layers, bool accept_conflicts) {
    switch (runner.wanted_layers()) {
      case Runner::Layers::Mounted:
        return mounter_.open(layers, accept_conflicts);
      case Runner::Layers::Files:
        return mounter_.files(layers, accept_conflicts);
      case Runner::Layers::Disk:
        break;
    }
    LayerStack stack;
    stack.disk = mounter_.disk(layers);
    return stack;
  }

  // `recorded` is called when the record of the sandbox exists, and nothing else of it.
  SandboxInfo make(const SandboxSpec& wanted, const std::function<void(const std::string& id)>& recorded,
                   const fs::path& saved = {}) {
    SandboxSpec spec = wanted;
    // The lease shall say what the rules mean, whatever the configuration says later.
    if (spec.network == NetworkMode::Policy) resolve_presets(spec.network_plan, presets());
    Runner& runner = sandboxes_.runner_of(spec);
    if (!spec.name.empty() && !valid_sandbox_name(spec.name))
      throw usage_error(quote(spec.name) + " is no valid name for a sandbox")
          .hint("use letters, digits, '_', '.' and '-', at most 63, the first a letter or digit");
    if (spec.layers.empty()) throw usage_error("a sandbox needs at least one layer");
    if (!spec.user_data.empty() && runner.wanted_layers() != Runner::Layers::Disk)
      throw usage_error("only a system that begins from a disk reads user data").hint("--backend fullvm");
    std::vector<FileLock> holds = hold_devices(home_, spec);
    runner.check(spec);

    Lease lease{home_.host_id() + random_id(16), ProcessIdentity::self(), std::chrono::system_clock::now(), spec};
    return attempt("cannot start sandbox " + (spec.name.empty() ? lease.id : quote(spec.name)), [&] {
      // From here on gc spares the layers; only then is it certain that they stay.
      SandboxRecords::Created made = sandboxes_.records().create(lease);
      try {
        recorded(lease.id);
        store_.confirm(spec.layers);
        const std::vector<StoredLayer> layers = stored_layers(spec.layers);
        LayerStack stack = stack_for(runner, layers, spec.accept_conflicts);
        RunnerRequest request{lease.id, made.directory, spec, std::move(stack)};
        request.holds = std::move(holds);
        if (spec.record) recorder_.begin_trajectory(lease, layers, request);
        const RunnerStatus status =
            saved.empty() ? runner.start(std::move(request)) : saver_of(spec).restore(std::move(request), saved);
        sandboxes_.remember(lease);
        return describe(lease, status);
      } catch (...) {
        const std::exception_ptr failed = std::current_exception();
        try {
          runner.reclaim(made.directory);
          engine::remove_trajectory(home_, lease.id);
          sandboxes_.records().remove(lease.id, spec.name);
        } catch (const Error&) {
          // The lease stays, and gc finishes what could not be removed now.
        }
        std::rethrow_exception(failed);
      }
    });
  }

  // Its keeper lives.
  bool runs(const std::string& id) {
    const std::optional<SandboxInfo> info = sandboxes_.read(id);
    return info && (info->state == SandboxState::Running || info->state == SandboxState::Paused);
  }

  // What was made under a key. Empty when its making failed or its maker died before the command began, and so nothing
  // was done; what is left of such a one is removed.
  std::optional<SandboxInfo> made_under(const std::string& key, const std::string& id) {
    const fs::path directory = sandboxes_.directory(id), trajectory = home_.trajectories() / id;
    try {
      // Whoever makes it holds this until it runs.
      if (fs::exists(directory)) FileLock(directory / "lock", FileLock::Mode::Exclusive);
    } catch (const Error&) {
      // It has gone meanwhile.
    }
    std::optional<SandboxInfo> info = sandboxes_.read(id);
    if (info && (info->state == SandboxState::Running || info->state == SandboxState::Paused)) return info;
    const bool begun = fs::exists(trajectory / kTrajectoryLog) && find_operation(trajectory, key);
    if (begun) return info ? info : recorder_.ended_sandbox(id);
    try {
      if (info) remove(id, true);
    } catch (const Error&) {
      // Another one who waited for it may have been quicker.
      if (fs::exists(directory)) throw;
    }
    return std::nullopt;
  }

  // What the runner finds out about the host is no part of the request.
  void check_same_sandbox(const std::string& key, const std::string& id, SandboxSpec wanted) {
    if (wanted.network == NetworkMode::Policy) resolve_presets(wanted.network_plan, presets());
    SandboxSpec then = read_trajectory_header(home_.trajectories() / id).spec;
    then.limits.class_by = wanted.limits.class_by;
    if (wanted.hostname.empty() && then.hostname == id) then.hostname.clear();
    Operation first;
    first.op_id = key;
    first.kind = "run";
    first.request = canonical_json(to_json(then));
    check_same_request(first, "run", canonical_json(to_json(wanted)));
  }

  // Of an operation that needs the processes of a sandbox: when it has ended, one without a name is none.
  Subject living(const std::string& id, const OperationContext& context) const {
    Subject subject = recorder_.subject(id, context);
    if (subject.info && !subject.info->keeper_pid && context.op_id.empty()) subject.place.trajectory.clear();
    return subject;
  }

  // What the lease says afterwards, as it is recorded.
  Json change(const std::string& id, const UpdateRequest& request) {
    const fs::path directory = sandboxes_.directory(id);
    const FileLock lock = sandboxes_.lock_for_change(id);
    std::optional<Lease> lease = sandboxes_.records().lease(id);
    if (!lease) throw usage_error("it is being removed");
    SandboxSpec after = updated(lease->spec, request);
    if (!request.only_labels()) {
      const SandboxInfo info = describe(*lease, sandboxes_.runner_of(lease->spec).status(directory));
      if (info.state != SandboxState::Running && info.state != SandboxState::Paused)
        throw usage_error("it is " + std::string(to_string(info.state)) +
                          (info.reason.empty() ? "" : ": " + info.reason))
            .hint("only its labels can be changed");
      const auto age = std::chrono::system_clock::now() - lease->created;
      if (request.lifetime && after.lifetime && age >= *after.lifetime)
        throw usage_error("it is " + format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(age)) +
                          " old, and its lifetime counts from its creation")
            .hint("a longer lifetime, or dsec stop " + id);
      sandboxes_.runner_of(lease->spec).update(directory, lease->spec, after);
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

  // What it may reach now, and not what it could when it was made.
  SandboxInfo as_it_is_now(SandboxInfo info) {
    if (info.spec.network == NetworkMode::Policy)
      if (auto plan = sandboxes_.runner_of(info.spec).network(sandboxes_.directory(info.id)).plan)
        info.spec.network_plan = *std::move(plan);
    return info;
  }

  using Forking = std::function<std::vector<SandboxInfo>(const SandboxInfo& parent)>;
  std::vector<SandboxInfo> fork_recorded(const std::string& id, const ForkRequest& request, const Json& json,
                                         const Forking& work) {
    if (request.count == 0) throw usage_error("at least one fork must be asked for");
    const Subject subject = recorder_.subject(id, request.operation);
    return attempt("cannot fork sandbox " + subject.id, [&] {
      std::vector<SandboxInfo> made;
      const Operation operation = Recorder::record(subject, {"fork", canonical_json(json), request.operation},
                                                   [&](Runner&, const fs::path&, Operation::Done& done) {
                                                     made = work(subject.info.value());
                                                     done.result = canonical_json(forks_json(made));
                                                   });
      if (!made.empty()) return made;
      // Which of them are still there is another question.
      for (const std::string& fork : forks_from(parse_json(operation.done->result, "of the record"))) {
        std::optional<SandboxInfo> there = sandboxes_.read(fork);
        made.push_back(there ? *std::move(there) : recorder_.ended_sandbox(fork));
      }
      return made;
    });
  }

  std::vector<SandboxInfo> make_forks(const SandboxInfo& sandbox, const ForkRequest& request) {
    SandboxInfo parent = as_it_is_now(sandbox);
    parent.spec.labels.erase(kMemoryOfLabel);
    std::vector<Digest> layers = parent.spec.layers;
    std::optional<PackedLayer> shared;  // its hold keeps gc away until the leases of the forks do
    if (!parent.spec.read_only) {
      // The same changes make the same layer, whoever they are forked from.
      shared = packer_.pack_snapshot(still_tree(parent).tree(),
                                     {LayerName{LayerKind::Snapshot, "fork"}, "", false, random_seed_files(), {}});
      layers = digests(shared->stack);
    }
    return make_all(parent, request, layers, {});
  }

  MemorySaver& saver_of(const SandboxSpec& spec) {
    if (auto* const saver = dynamic_cast<MemorySaver*>(&sandboxes_.runner_of(spec))) return *saver;
    throw usage_error("the backend " + spec.backend + " cannot save what runs in a sandbox")
        .hint("dsec create --backend microvm")
        .hint("without --memory, dsec fork takes the files alone");
  }

  MemorySnapshots::Draft save_memory(const SandboxInfo& info, const std::string& name) {
    MemorySaver& saver = saver_of(info.spec);
    if (info.state != SandboxState::Running && info.state != SandboxState::Paused)
      throw usage_error("it is " + std::string(to_string(info.state)) + ", and only what runs has a memory");
    MemorySnapshots::Draft draft(MemorySnapshots(home_),
                                 {name, info.id, info.spec, static_cast<std::uint64_t>(std::time(nullptr)), 0, {}});
    saver.save_memory(sandboxes_.directory(info.id), draft.place());
    return draft;
  }

  std::vector<SandboxInfo> go_on_from(const MemorySnapshot& snapshot, const ForkRequest& request) {
    SandboxInfo parent;
    parent.id = snapshot.sandbox;
    parent.spec = snapshot.spec;
    parent.spec.labels[kMemoryOfLabel] = snapshot.sandbox;
    return make_all(parent, request, parent.spec.layers, snapshot.place);
  }

  // `saved`: what they go on from; empty: they begin.
  std::vector<SandboxInfo> make_all(const SandboxInfo& parent, const ForkRequest& request,
                                    const std::vector<Digest>& layers, const fs::path& saved) {
    std::vector<SandboxInfo> made;
    try {
      const std::string base = request.name.empty() ? parent.spec.name : request.name;
      for (std::size_t number = 1; made.size() < request.count; ++number) {
        const std::string name = base.empty() ? "" : base + "-" + std::to_string(number);
        if (!name.empty() && sandboxes_.records().has_name(name)) continue;
        made.push_back(make(
            fork_spec(parent, request, layers, name), [](const std::string&) {}, saved));
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
    wake(sandboxes_.runner_of(info.spec), sandboxes_.directory(info.id));
    return info;
  }
  static void wake(Runner& runner, const fs::path& directory) {
    if (runner.status(directory).state == SandboxState::Paused) runner.resume(directory);
  }

  StillTree still_tree(const SandboxInfo& info, WrittenBelow below = WrittenBelow::Left) {
    if (info.spec.read_only) throw usage_error("it has no writable layer, and so no changes");
    std::vector<StoredLayer> layers = stored_layers(info.spec.layers);
    Runner& runner = sandboxes_.runner_of(info.spec);
    const fs::path directory = sandboxes_.directory(info.id);
    if (auto* const copier = dynamic_cast<WrittenCopier*>(&runner))
      return StillTree(copier->copy_written(directory, below), std::move(layers));
    const LayerStack stack = mounter_.open(layers, info.spec.accept_conflicts);
    return StillTree(runner, directory, std::move(layers), stack);
  }

  static std::vector<Digest> digests(const std::vector<StoredLayer>& layers) {
    std::vector<Digest> result;
    for (const StoredLayer& layer : layers) result.push_back(layer.digest);
    return result;
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
  LocalSandboxes sandboxes_;
  const Recorder recorder_;
  LayerStore& store_;
  LayerMounter& mounter_;
  LayerPacker& packer_;
  TreeRemover remover_;
  std::mutex cache_mutex_;
  std::unordered_map<Digest, StoredLayer> cache_;
};

}  // namespace

std::unique_ptr<LocalEngine> make_local_engine(const Home& home, LayerStore& store, LayerMounter& mounter,
                                               LayerPacker& packer, Runners runners) {
  return std::make_unique<EngineOfThisHost>(home, store, mounter, packer, std::move(runners));
}

}  // namespace dsec::engine
