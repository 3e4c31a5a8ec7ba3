#include "core/remote/remote_engine.h"

#include <fcntl.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "core/engine/branching_json.h"
#include "core/engine/update.h"
#include "core/remote/edge_client.h"
#include "core/remote/values.h"

namespace dsec::remote {
using namespace engine;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

// A client that waits asks again after so long.
constexpr milliseconds kLongestWait{50'000};
constexpr std::size_t kPiece = 64 << 10;

std::string word(bool value) { return value ? "true" : "false"; }

template <typename Value>
std::vector<Value> list_from(const Json& answer, const char* name, Value (*from)(const Json&)) {
  const auto list = answer.find(name);
  if (list == answer.end() || !list->is_array()) throw usage_error("the answer has no '" + std::string(name) + "'");
  std::vector<Value> values;
  for (const Json& each : *list) values.push_back(from(each));
  return values;
}

class RemoteCommand final : public ExecStream {
 public:
  RemoteCommand(std::unique_ptr<FrameStream> stream, std::function<void(const std::string& exec_id, int)> signal)
      : stream_(std::move(stream)), signal_(std::move(signal)) {
    exec_id_ = json_string(stream_->next()->json(), "exec_id");
  }

  const std::string& exec_id() const override { return exec_id_; }
  int descriptor() const override { return stream_->descriptor(); }

  std::optional<ExecEvent> next(std::optional<milliseconds> timeout) override {
    try {
      std::optional<Frame> frame = stream_->next(timeout);
      if (!frame) return std::nullopt;
      if (frame->kind == FrameKind::Exited)
        return ExecEvent{ExecEvent::Kind::Exited, "", exec_result_from_wire(frame->json())};
      if (frame->kind != FrameKind::Stdout && frame->kind != FrameKind::Stderr)
        throw failure("the edge broke the protocol");
      return ExecEvent{frame->kind == FrameKind::Stderr ? ExecEvent::Kind::Stderr : ExecEvent::Kind::Stdout,
                       std::move(frame->payload),
                       {}};
    } catch (Error& error) {
      error.context("command " + exec_id_ + " cannot be followed any more");
      throw;
    }
  }

  void write_stdin(std::string_view bytes) override {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kPiece, bytes.size())))
      stream_->send(FrameKind::Stdin, bytes.substr(0, kPiece));
  }
  void close_stdin() override { stream_->send(FrameKind::StdinEnd, {}); }
  void resize(std::uint16_t rows, std::uint16_t columns) override {
    stream_->send(FrameKind::Resize, canonical_json({{"rows", rows}, {"columns", columns}}));
  }
  // Not behind input that waits for the command to read it: the signal may be what ends that wait.
  void signal(int signo) override { signal_(exec_id_, signo); }

 private:
  const std::unique_ptr<FrameStream> stream_;
  const std::function<void(const std::string&, int)> signal_;
  std::string exec_id_;
};

class RemoteWatch final : public FileWatch {
 public:
  // From its first word on nothing is missed.
  explicit RemoteWatch(std::unique_ptr<FrameStream> stream) : stream_(std::move(stream)) { stream_->next(); }

  std::optional<FileEvent> next(std::optional<milliseconds> timeout) override {
    if (ended_) return std::nullopt;
    const std::optional<Frame> frame = stream_->next(timeout);
    if (!frame) return std::nullopt;
    FileEvent event = frame->kind == FrameKind::End ? FileEvent{FileEvent::Kind::Ended, "", "", false}
                                                    : file_event_from_wire(frame->json());
    ended_ = event.kind == FileEvent::Kind::Ended;
    return event;
  }

 private:
  const std::unique_ptr<FrameStream> stream_;
  bool ended_ = false;
};

class RemoteEngine final : public Engine {
 public:
  explicit RemoteEngine(EdgePlace place) : client_(std::move(place)) {}

  StoredLayer layer(const LayerRef& ref) override {
    return layer_from_wire(client_.ask(Call::Layer, {{"ref", ref.str()}}));
  }

  SandboxInfo create(const SandboxSpec& spec) override { return make(spec, {}).info; }
  MadeSandbox create_once(const SandboxSpec& spec, const std::string& key) override {
    return make(spec, {.op_id = key});
  }

  std::unique_ptr<ExecStream> exec(const std::string& id, const ExecSpec& spec) override {
    return command(id, client_.open(Call::Exec, {{"id", id}}, to_wire(spec), spec.operation));
  }
  std::unique_ptr<ExecStream> attach(const std::string& id, const std::string& exec_id,
                                     const AttachFrom& from) override {
    return command(id, client_.open(Call::Attach, {{"id", id},
                                                   {"exec_id", exec_id},
                                                   {"stdout_from", std::to_string(from.stdout_bytes)},
                                                   {"stderr_from", std::to_string(from.stderr_bytes)}}));
  }
  std::vector<ExecInfo> commands(const std::string& id) override {
    return list_from(client_.ask(Call::Commands, {{"id", id}}), "commands", exec_info_from_wire);
  }
  void signal(const std::string& id, const std::string& exec_id, int signo, const OperationContext& context) override {
    client_.ask(Call::Signal, {{"id", id}, {"exec_id", exec_id}}, {{"signal", signo}}, context);
  }

  SessionInfo open_session(const std::string& id, const SessionSpec& spec) override {
    return session_from_wire(client_.ask(Call::OpenSession, {{"id", id}}, to_wire(spec), spec.operation));
  }
  std::unique_ptr<ExecStream> run_in_session(const std::string& id, const std::string& session,
                                             const SessionCommand& command_) override {
    return command(id, client_.open(Call::RunInSession, {{"id", id}, {"session", session}}, to_wire(command_),
                                    command_.operation));
  }
  std::vector<SessionInfo> sessions(const std::string& id) override {
    return list_from(client_.ask(Call::Sessions, {{"id", id}}), "sessions", session_from_wire);
  }
  void close_session(const std::string& id, const std::string& session, const OperationContext& context) override {
    client_.ask(Call::CloseSession, {{"id", id}, {"session", session}}, no_body(), context);
  }

  UniqueFd connect(const std::string& id, std::uint16_t port) override {
    return client_.upgrade(Call::Connect, {{"id", id}, {"port", std::to_string(port)}}, no_body(), {}, kBytesProtocol);
  }
  std::string screenshot(const std::string& id, const OperationContext& context) override {
    std::string picture;
    client_.read(Call::Screenshot, {{"id", id}}, no_body(), context,
                 [&](const Frame& frame) { picture += frame.payload; });
    return picture;
  }
  void screen_input(const std::string& id, const ScreenInput& input, const OperationContext& context) override {
    client_.ask(Call::ScreenInput, {{"id", id}}, engine::to_json(input), context);
  }
  UniqueFd connect_screen(const std::string& id) override {
    return client_.upgrade(Call::ConnectScreen, {{"id", id}}, no_body(), {}, kBytesProtocol);
  }
  void http(const std::string& id, std::uint16_t port, const HttpRequest& request, const HttpSink& sink) override {
    client_.read(Call::Http, {{"id", id}, {"port", std::to_string(port)}}, to_wire(request), request.operation,
                 [&](const Frame& frame) {
                   if (frame.kind == FrameKind::Record)
                     sink.head(http_response_from_wire(frame.json()));
                   else
                     sink.body(frame.payload);
                 });
  }
  std::unique_ptr<FileWatch> watch(const std::string& id, const std::string& path, bool recursive) override {
    return std::make_unique<RemoteWatch>(
        client_.open(Call::Watch, {{"id", id}, {"path", path}, {"recursive", word(recursive)}}));
  }

  std::vector<SandboxInfo> list(const ListFilter& filter) override {
    Parameters parameters = {{"all", word(filter.all)}};
    // A key alone matches any value, as an empty one does.
    for (const auto& [key, value] : filter.labels)
      parameters["labels"] += key + (value.empty() ? "" : "=" + value) + "\n";
    return list_from(client_.ask(Call::List, parameters), "sandboxes", sandbox_from_wire);
  }
  SandboxInfo inspect(const std::string& id) override {
    return sandbox_from_wire(client_.ask(Call::Inspect, {{"id", id}}));
  }
  SandboxInfo wait(const std::string& id, std::optional<milliseconds> timeout) override {
    const auto end = steady_clock::now() + timeout.value_or(milliseconds(0));
    // A name may be another sandbox's by the time that it is asked for again.
    std::string whom = id;
    for (;;) {
      auto time = kLongestWait;
      if (timeout) time = std::clamp(std::chrono::ceil<milliseconds>(end - steady_clock::now()), milliseconds(0), time);
      int status = 0;
      const Json answer =
          client_.ask(Call::Wait, {{"id", whom}, {"timeout_ms", std::to_string(time.count())}}, no_body(), {}, &status);
      if (status != 202) return sandbox_from_wire(answer);
      whom = json_string(answer, "id");
      if (timeout && steady_clock::now() >= end) throw failure("sandbox " + whom + " did not end in time");
    }
  }
  void stop(const std::string& id, milliseconds grace, const OperationContext& context) override {
    client_.ask(Call::Stop, {{"id", id}}, {{"grace_ms", grace.count()}}, context);
  }
  void remove(const std::string& id, bool force) override {
    client_.ask(Call::Remove, {{"id", id}, {"force", word(force)}});
  }
  void pause(const std::string& id, const OperationContext& context) override {
    client_.ask(Call::Pause, {{"id", id}}, no_body(), context);
  }
  void resume(const std::string& id, const OperationContext& context) override {
    client_.ask(Call::Resume, {{"id", id}}, no_body(), context);
  }
  SandboxInfo update(const std::string& id, const UpdateRequest& request) override {
    return sandbox_from_wire(client_.ask(Call::Update, {{"id", id}}, to_wire(request), request.operation));
  }

  Snapshot snapshot(const std::string& id, const SnapshotRequest& request) override {
    return snapshot_from(client_.ask(Call::Snapshot, {{"id", id}}, to_wire(request), request.operation));
  }
  std::vector<SandboxInfo> fork(const std::string& id, const ForkRequest& request) override {
    return list_from(client_.ask(Call::Fork, {{"id", id}}, to_wire(request), request.operation), "sandboxes",
                     sandbox_from_wire);
  }

  void logs(const std::string& id, const LogOptions& options, const LogSink& sink) override {
    Parameters parameters = {{"id", id}, {"follow", word(options.follow)}};
    if (options.tail) parameters["tail"] = std::to_string(*options.tail);
    if (!options.exec_id.empty()) parameters["exec_id"] = options.exec_id;
    const std::unique_ptr<FrameStream> stream = client_.open(Call::Logs, parameters);
    for (;;) {
      const std::optional<Frame> frame = stream->next(kGoOnInterval);
      if (!frame && options.go_on && !options.go_on()) return;
      if (!frame) continue;
      if (frame->kind == FrameKind::End) return;
      const Json json = frame->json();
      const auto time = std::chrono::system_clock::time_point(std::chrono::microseconds(json_u64(json, "time_us")));
      sink(json_string(json, "stream") == "stderr" ? ExecEvent::Kind::Stderr : ExecEvent::Kind::Stdout, time,
           bytes_of_json(json.value("data", Json(""))));
    }
  }
  SandboxStats stats(const std::string& id) override { return stats_from_wire(client_.ask(Call::Stats, {{"id", id}})); }
  std::vector<Change> diff(const std::string& id) override {
    return list_from(client_.ask(Call::Changes, {{"id", id}}), "changes", change_from_wire);
  }
  std::vector<FileChange> diff_stat(const std::string& id) override {
    return list_from(client_.ask(Call::ChangeStat, {{"id", id}}), "changes", file_change_from_wire);
  }
  void diff_content(const std::string& id, DiffForm form, int fd) override {
    download(Call::ChangeContent, {{"id", id}, {"form", form == DiffForm::Tar ? "tar" : "patch"}}, {}, fd);
  }
  void copy_out(const std::string& id, const std::string& path, int fd, const OperationContext& context) override {
    download(Call::CopyOut, {{"id", id}, {"path", path}}, context, fd);
  }
  void copy_in(const std::string& id, const std::string& path, int fd, const OperationContext& context) override {
    client_.upload(Call::CopyIn, {{"id", id}, {"path", path}}, fd, context);
  }

  std::vector<TrajectoryInfo> trajectories(std::vector<std::string>& problems) override {
    const Json answer = client_.ask(Call::Trajectories, {});
    for (const Json& problem : answer.value("problems", Json::array())) problems.push_back(problem.get<std::string>());
    return list_from(answer, "trajectories", trajectory_from_wire);
  }
  Trajectory trajectory(const std::string& id) override {
    const auto place = std::make_shared<TempDirectory>(std::filesystem::temp_directory_path());
    const std::filesystem::path path = place->path() / "trajectory.jsonl";
    const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    bool live = false;
    std::string damage;
    client_.read(Call::Trajectory, {{"id", id}}, no_body(), {}, [&](const Frame& frame) {
      if (frame.kind == FrameKind::Data) return write_all(file.get(), frame.payload);
      const Json json = frame.json();
      live = json.value("live", false);
      damage = json_string_or(json, "damage", "");
    });
    Trajectory read = Trajectory::read(path);
    read.live = live;
    if (read.damage.empty()) read.damage = damage;
    // What lies within the export is read when it is asked for, so the file stays as long.
    if (read.embedded) read.embedded = {read.embedded.get(), [place, inner = read.embedded](const EmbeddedFiles*) {}};
    return read;
  }
  std::optional<Operation> recorded(const std::string& id, const std::string& op_id) override {
    // No path has an empty part.
    if (op_id.empty()) return std::nullopt;
    const Json answer = client_.ask(Call::Recorded, {{"id", id}, {"op_id", op_id}});
    const auto operation = answer.find("operation");
    if (operation == answer.end() || operation->is_null()) return std::nullopt;
    return operation_from_wire(*operation);
  }
  void remove_trajectory(const std::string& id) override { client_.ask(Call::RemoveTrajectory, {{"id", id}}); }

  NetworkReport network(const std::string& id) override {
    return network_report_from_wire(client_.ask(Call::Network, {{"id", id}}));
  }
  NetworkPlan set_network(const std::string& id, const NetworkChange& change,
                          const OperationContext& context) override {
    return network_plan_from_json(
        client_.ask(Call::SetNetwork, {{"id", id}}, dsec::to_json(change), context).value("plan", Json::object()));
  }
  std::string network_log(const std::string& id, std::uint64_t from) override {
    return bytes_of_json(
        client_.ask(Call::NetworkLog, {{"id", id}, {"from", std::to_string(from)}}).value("lines", Json("")));
  }

 private:
  MadeSandbox make(const SandboxSpec& spec, const OperationContext& context) {
    const Json answer = client_.ask(Call::Create, {}, {{"spec", dsec::to_json(spec)}}, context);
    return {sandbox_from_wire(answer.value("sandbox", Json::object())), answer.value("made", true)};
  }

  std::unique_ptr<ExecStream> command(const std::string& id, std::unique_ptr<FrameStream> stream) {
    return std::make_unique<RemoteCommand>(std::move(stream), [this, id](const std::string& exec_id, int signo) {
      try {
        signal(id, exec_id, signo, {.recorded = false});
      } catch (const Error&) {
        // It has ended meanwhile; its last event tells how.
      }
    });
  }

  void download(Call call, const Parameters& parameters, const OperationContext& context, int fd) {
    client_.read(call, parameters, no_body(), context, [&](const Frame& frame) { write_all(fd, frame.payload); });
  }

  const EdgeClient client_;
};

}  // namespace

std::unique_ptr<Engine> make_remote_engine(EdgePlace place) { return std::make_unique<RemoteEngine>(std::move(place)); }

}  // namespace dsec::remote
