#include "runners/container/container_runner.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "core/base/signal_name.h"
#include "core/engine/network_log.h"
#include "core/engine/sandbox_id.h"
#include "core/engine/spool_reader.h"
#include "core/engine/written_tree.h"
#include "core/model/hostname.h"
#include "runners/container/channel.h"
#include "runners/container/cpu_class.h"
#include "runners/container/device_tree.h"
#include "runners/container/exec_stream.h"
#include "runners/container/file_watch.h"
#include "runners/container/guest_place.h"
#include "runners/container/open_operation.h"
#include "runners/container/pause.h"
#include "runners/container/program.h"
#include "runners/container/sandbox_files.h"
#include "runners/container/sandbox_network.h"
#include "runners/container/sandbox_stats.h"
#include "runners/container/sessions.h"
#include "runners/container/spec_checks.h"
#include "runners/container/start.h"
#include "runners/container/state_file.h"
#include "runners/container/update.h"
#include "runners/egress/egress.h"
#include "runners/isolation/writable_layer.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using engine::ExecEvent;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

constexpr milliseconds kRemoveTimeout{10'000};
// What has served layers or the network ends by itself once nobody needs it.
constexpr milliseconds kLeaveTimeout{2'000};

Channel keeper_of(const fs::path& directory) {
  std::optional<Channel> channel = Channel::connect(directory);
  if (channel) return std::move(*channel);
  const engine::RunnerStatus status = read_status(directory);
  throw usage_error("the sandbox is " + std::string(engine::to_string(status.state)) +
                    (status.reason.empty() ? "" : ": " + status.reason));
}

UniqueFd procs_of_keepers(const CgroupHost& cgroups) {
  const UniqueFd group = cgroups.keepers_group();
  UniqueFd procs(::openat(group.get(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
  if (!procs) throw system_error("open the keepers' control group");
  return procs;
}

class ContainerRunner final : public engine::Runner {
 public:
  ContainerRunner(const engine::Home& home, fs::path dsec)
      : place_(home.run()),
        sandboxes_(home.sandboxes()),
        dsec_(std::move(dsec)),
        host_id_(home.host_id()),
        egress_(home.run(), [this] { return procs_of_keepers(cgroups()); }) {}
  void check(SandboxSpec& spec) override {
    if (::geteuid() != 0)
      throw failure("running sandboxes needs root").hint("sudo dsec …; importing, building and publishing do not");
    signal_number(spec.config.stop_signal);
    check_mounts(spec, sandboxes_.parent_path());
    check_smallest(spec.limits);
    if (!spec.hostname.empty()) check_hostname(spec.hostname);
    if (spec.pmem != PmemUse::Auto)
      throw usage_error(
          "a container reads its layers from the memory in which the host has them cached, whatever --pmem says")
          .hint("--backend microvm");
    std::string why;
    if (!cgroups().has_lifecycle(&why)) throw failure("sandboxes need a v2 control group: " + why);
    cgroups().check(spec.limits);
    spec.limits.class_by = means_of_class(cgroups(), spec.limits.cpu_class);
    check_devices(spec.devices);
    if (spec.network == NetworkMode::Policy) egress_.check(spec.network_plan);
    if (spec.limits.disk && !spec.read_only) check_disk_limit(sandboxes_, *spec.limits.disk);
    prepare(spec);
  }

  engine::RunnerStatus start(engine::RunnerRequest request) override {
    try {
      engine::RunnerStatus status;
      status.state = engine::SandboxState::Running;
      status.keeper_pid = start_sandbox({place_, keepers_, namespaces_, cgroups(), program(), dsec_}, request);
      // Nothing of the user's runs yet.
      if (request.spec.network == NetworkMode::Policy)
        egress_.attach(request.directory, request.trajectory, request.spec.network_plan,
                       pidfd_of_init(request.directory).get());
      return status;
    } catch (...) {
      const std::exception_ptr failed = std::current_exception();
      try {
        reclaim(request.directory);
      } catch (const Error&) {
        // The lease stays; gc tries again.
      }
      std::rethrow_exception(failed);
    }
  }

  engine::RunnerStatus status(const fs::path& directory) override { return read_status(directory); }

  std::unique_ptr<engine::ExecStream> exec(const fs::path& directory, const ExecSpec& spec) override {
    if (spec.argv.empty() || spec.argv[0].empty()) throw usage_error("no command is given");
    if (!spec.workdir.empty() && spec.workdir[0] != '/')
      throw usage_error("working directory " + quote(spec.workdir) + " is not absolute");
    Channel keeper = keeper_of(directory);
    egress_.ensure(directory, [&] { return pidfd_of_init(directory); });
    std::unique_ptr<engine::ExecStream> stream = start_exec(directory, std::move(keeper), spec);
    namespaces_.begin();
    return stream;
  }

  std::unique_ptr<engine::OpenOperation> begin(const fs::path& directory,
                                               const engine::OperationRequest& request) override {
    return begin_operation(keeper_of(directory), request);
  }

  std::unique_ptr<engine::ExecStream> attach(const fs::path& directory, const std::string& exec_id,
                                             const engine::AttachFrom& from) override {
    if (std::optional<Channel> channel = Channel::connect(directory))
      if (auto stream = attach_exec(directory, std::move(*channel), exec_id, from)) return stream;
    for (const engine::ExecInfo& info : read_ended_commands(directory))
      if (info.exec_id == exec_id && info.result) return replay_exec(directory, info, from);
    throw usage_error("there is no command " + quote(exec_id));
  }

  void signal(const fs::path& directory, const std::string& exec_id, int signo) override {
    const std::vector<engine::ExecInfo> running = list_running(directory);
    const bool found =
        std::any_of(running.begin(), running.end(), [&](const auto& info) { return info.exec_id == exec_id; });
    if (!found) throw usage_error("no command " + quote(exec_id) + " runs").hint("dsec commands lists them");
    keeper_of(directory).send(wire::Type::SignalTo,
                              FrameText().str(exec_id).u32(static_cast<std::uint32_t>(signo)).text());
  }

  engine::SessionInfo open_session(const fs::path& directory, const SessionSpec& spec) override {
    return runners::open_session(keeper_of(directory), spec);
  }
  std::unique_ptr<engine::ExecStream> run_in_session(const fs::path& directory, const std::string& session,
                                                     const SessionCommand& command) override {
    return start_session_command(directory, keeper_of(directory), session, command);
  }
  std::vector<engine::SessionInfo> sessions(const fs::path& directory) override {
    return list_sessions(keeper_of(directory));
  }
  void close_session(const fs::path& directory, const std::string& session) override {
    runners::close_session(keeper_of(directory), session);
  }

  UniqueFd connect(const fs::path& directory, std::uint16_t port) override {
    return connect_to(open_init(directory), port);
  }
  std::unique_ptr<engine::FileWatch> watch(const fs::path& directory, const std::string& path,
                                           bool recursive) override {
    return watch_files(open_init(directory), path, recursive);
  }

  std::vector<engine::ExecInfo> commands(const fs::path& directory) override {
    // Those that run first: one that ends in between is then in both lists, and in neither otherwise.
    std::vector<engine::ExecInfo> running = list_running(directory);
    std::vector<engine::ExecInfo> all = read_ended_commands(directory);
    for (engine::ExecInfo& info : running) {
      const bool ended =
          std::any_of(all.begin(), all.end(), [&](const auto& other) { return other.exec_id == info.exec_id; });
      if (!ended) all.push_back(std::move(info));
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.exec_id.size() != b.exec_id.size() ? a.exec_id.size() < b.exec_id.size() : a.exec_id < b.exec_id;
    });
    return all;
  }

  bool wait(const fs::path& directory, std::optional<milliseconds> timeout) override {
    return await_end(directory, wire::Type::Wait, "", timeout);
  }

  void stop(const fs::path& directory, milliseconds grace) override {
    const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(grace.count(), 0));
    // A keeper that does not answer in time has lost its sandbox: reclaim ends both.
    if (!await_end(directory, wire::Type::Stop, FrameText().u64(count).text(), grace + kRemoveTimeout))
      throw failure("the sandbox did not stop").hint("dsec rm --force kills its keeper, too");
  }

  void pause(const fs::path& directory) override { pause_sandbox(directory); }
  void resume(const fs::path& directory) override { resume_sandbox(directory); }
  void update(const fs::path& directory, const SandboxSpec& before, SandboxSpec& after) override {
    update_sandbox(cgroups(), directory, before, after);
  }
  std::unique_ptr<engine::Stillness> hold_still(const fs::path& directory) override {
    return hold_sandbox_still(directory);
  }

  void release(const fs::path& directory) override {
    kill_keeper(directory);
    const std::string id = directory.filename().native();
    SandboxCgroups::remove(cgroups(), id, kRemoveTimeout);
    release_writable_layer(directory);
  }

  void reclaim(const fs::path& directory) override {
    release(directory);
    for (const char* name : {"upper", "work", "disk.img", "project", "files.lock", "spool", "state.json", ".tmp-state",
                             "commands.jsonl", "control.sock", "hostname", "hosts", "resolv.conf", "machine-id", "dev",
                             kNetworkFile, engine::kNetworkLog, kCaFile})
      remove_tree(directory / name);
  }

  void release_shared() override {
    keepers_.clear();
    namespaces_.clear();
    place_.release();
    egress_.release();
    cgroups().remove_unused_parents(kLeaveTimeout);
  }

  void logs(const fs::path& directory, const engine::LogOptions& options, const engine::LogSink& sink) override;

  engine::SandboxStats stats(const fs::path& directory) override { return sandbox_stats(cgroups(), directory); }
  std::vector<engine::Change> diff(const fs::path& directory, const engine::OpenLayers& layers) override {
    return diff_layer(open_upper(directory).get(), engine::compose_lowers(layers()).get());
  }
  UniqueFd open_writable_layer(const fs::path& directory) override { return open_upper(directory); }
  void copy_out(const fs::path& directory, const engine::OpenLayers& layers, const std::string& path, int fd) override {
    attempt("cannot copy out of the sandbox",
            [&] { runners::copy_out(SandboxTree(directory, layers).files(), path, fd); });
  }
  void copy_in(const fs::path& directory, const engine::OpenLayers& layers, const std::string& path, int fd) override {
    attempt("cannot copy into the sandbox",
            [&] { runners::copy_in(SandboxTree(directory, layers).files(), path, fd); });
  }

  engine::NetworkReport network(const fs::path& directory) override { return egress_.report(directory); }

  void set_network(const fs::path& directory, const NetworkPlan& plan) override {
    if (!read_network_plan(directory))
      throw usage_error("the sandbox was made without a network policy, and none can be given to it now")
          .hint("make it with --network policy, which allows nothing at first");
    egress_.set(directory, plan, [&] { return pidfd_of_init(directory); });
  }

  std::string network_log(const fs::path& directory, std::uint64_t from) override {
    return engine::read_network_lines(directory, from);
  }

 private:
  // All are on their way while the sandbox's records are made.
  void prepare(const SandboxSpec& spec) {
    place_.prepare();
    keepers_.prepare(cgroups(), program(), sandboxes_ / std::string(engine::kSandboxIdSize, '-'));
    if (spec.userns == UserNamespace::Auto && spec.network != NetworkMode::Host) namespaces_.prepare();
  }

  const CgroupHost& cgroups() {
    const std::lock_guard lock(mutex_);
    if (!cgroups_) cgroups_.emplace(host_id_);
    return *cgroups_;
  }

  int program() {
    const std::lock_guard lock(mutex_);
    if (!program_) program_ = load_guest_program();
    return program_.get();
  }

  static std::vector<engine::ExecInfo> list_running(const fs::path& directory) {
    std::optional<Channel> channel = Channel::connect(directory);
    if (!channel) return {};
    try {
      return list_running(*channel);
    } catch (const KeeperGone&) {
      return {};
    }
  }

  static std::vector<engine::ExecInfo> list_running(Channel& channel) {
    std::vector<engine::ExecInfo> found;
    channel.send(wire::Type::List, {});
    while (const std::optional<Frame> frame = channel.receive()) {
      if (frame->type != wire::Type::Command) break;
      wire::Reader reader = frame->reader();
      const auto text = [&] {
        const auto value = reader.str();
        return std::string(value.data, value.size);
      };
      engine::ExecInfo info;
      info.exec_id = text();
      info.running = reader.u32() != 0;
      for (std::uint32_t left = reader.u32(); left > 0 && reader.ok(); --left) info.argv.push_back(text());
      const std::uint32_t session = reader.left() > 0 ? reader.u32() : 0;
      if (session) info.session = std::to_string(session);
      found.push_back(std::move(info));
    }
    return found;
  }

  // False when `timeout` passes first.
  static bool await_end(const fs::path& directory, wire::Type request, const std::string& text,
                        std::optional<milliseconds> timeout) {
    std::optional<Channel> channel = Channel::connect(directory);
    if (channel) {
      try {
        channel->send(request, text);
        if (!channel->receive(timeout)) return false;
        // Its end closes the connection.
        while (channel->receive(kRemoveTimeout)) {
        }
      } catch (const Error&) {
        // It went before it could answer, which its record tells.
      }
    }
    // It may be about to close: it writes its record before it answers, and goes at once afterwards.
    const auto end = steady_clock::now() + std::min(timeout.value_or(kRemoveTimeout), kRemoveTimeout);
    while (living_keeper(directory)) {
      if (steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  }

  // PID 1 dies with its parent, and with it everything inside.
  static void kill_keeper(const fs::path& directory) {
    for (int attempt = 0;; ++attempt) {
      const pid_t keeper = living_keeper(directory);
      if (!keeper) return;
      const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, keeper, 0)));
      // Only if the process that the descriptor names is still the one that holds the lock.
      if (pidfd && living_keeper(directory) == keeper)
        ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
      if (attempt > 5000) throw failure("keeper " + std::to_string(keeper) + " of the sandbox does not end");
      std::this_thread::sleep_for(milliseconds(attempt < 20 ? 1 : 2));
    }
  }

  GuestPlace place_;
  const fs::path sandboxes_, dsec_;
  const std::string host_id_;
  std::mutex mutex_;
  std::optional<CgroupHost> cgroups_;
  UniqueFd program_;
  KeeperSupply keepers_;
  NamespaceSupply namespaces_;
  const Egress egress_;
};

// Keeps the last `tail` lines of what is sent through it.
class TailFilter {
 public:
  TailFilter(std::optional<std::size_t> tail, const engine::LogSink& sink) : tail_(tail), sink_(sink) {}

  void add(ExecEvent::Kind kind, std::chrono::system_clock::time_point time, std::string_view data) {
    if (!tail_) return sink_(kind, time, data);
    for (std::size_t at = 0; at < data.size();) {
      const std::size_t end = std::min(data.find('\n', at), data.size() - 1) + 1;
      if (lines_.empty() || complete_) lines_.push_back({});
      lines_.back().push_back({kind, time, std::string(data.substr(at, end - at))});
      complete_ = data[end - 1] == '\n';
      if (lines_.size() > *tail_) lines_.erase(lines_.begin());
      at = end;
    }
  }
  void flush() {
    for (const auto& line : lines_)
      for (const Piece& piece : line) sink_(piece.kind, piece.time, piece.text);
    lines_.clear();
    tail_.reset();
  }

 private:
  struct Piece {
    ExecEvent::Kind kind;
    std::chrono::system_clock::time_point time;
    std::string text;
  };
  std::optional<std::size_t> tail_;
  const engine::LogSink& sink_;
  std::vector<std::vector<Piece>> lines_;
  bool complete_ = true;
};

void ContainerRunner::logs(const fs::path& directory, const engine::LogOptions& options, const engine::LogSink& sink) {
  const std::optional<SandboxRecord> record = read_record(directory);
  const std::string main_exec_id = record ? record->main_exec_id : "";
  std::string exec_id = options.exec_id;
  if (exec_id.empty()) {
    exec_id = main_exec_id;
    if (exec_id.empty()) throw usage_error("the sandbox has no main command").hint("name one: dsec logs --exec ID");
  }
  if (exec_id.find_first_not_of("0123456789") != std::string::npos)
    throw usage_error("there is no command " + quote(exec_id));
  TailFilter filter(options.tail, sink);
  const std::vector<engine::ExecInfo> all = commands(directory);
  const auto info = std::find_if(all.begin(), all.end(), [&](const auto& other) { return other.exec_id == exec_id; });
  const bool listed = info != all.end();
  // A keeper that was killed tells nothing of what ran under it, but what that wrote is there.
  std::vector<engine::SpoolPart> parts;
  if (!listed) parts = engine::open_spool(directory, exec_id);
  if (!listed && parts.empty() && exec_id != main_exec_id) throw usage_error("there is no command " + quote(exec_id));
  const std::optional<ExecResult> result = listed ? info->result : std::nullopt;
  const std::uint64_t dropped[2] = {result ? result->stdout_dropped : 0, result ? result->stderr_dropped : 0};
  const engine::LogSink filtered = [&](ExecEvent::Kind kind, auto time, std::string_view data) {
    filter.add(kind, time, data);
  };
  std::optional<Channel> channel;
  if (options.follow && listed && info->running) channel = Channel::connect(directory);
  if (channel) {
    follow_exec(
        std::move(*channel), exec_id, filtered, [&] { filter.flush(); }, options.go_on);
    return;
  }
  if (listed) parts = engine::open_spool(directory, exec_id);
  engine::read_spool(parts, dropped, [&](unsigned stream, auto time, std::string_view data) {
    filtered(stream ? ExecEvent::Kind::Stderr : ExecEvent::Kind::Stdout, time, data);
  });
  filter.flush();
}

}  // namespace

std::unique_ptr<engine::Runner> make_container_runner(const engine::Home& home, const fs::path& dsec) {
  return std::make_unique<ContainerRunner>(home, dsec);
}

UniqueFd open_keepers_procs(const engine::Home& home) { return procs_of_keepers(CgroupHost(home.host_id())); }

}  // namespace dsec::runners
