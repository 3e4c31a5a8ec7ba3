#include "core/remote/edge/calls.h"

#include <poll.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "core/engine/branching_json.h"
#include "core/engine/trajectory_export.h"
#include "core/remote/frame.h"
#include "core/remote/values.h"

namespace dsec::remote {
using engine::Engine;
using std::chrono::milliseconds;
namespace {

// Of what a thread writes; a pipe takes it at once.
constexpr std::size_t kPart = 32 << 10;
// A server of a sandbox that says nothing for so long says nothing any more; a client may say another time.
constexpr milliseconds kSilentServer{600'000};
constexpr std::uint64_t kLongestGrace = 365ull * 24 * 3600 * 1000;
constexpr std::uint64_t kLastSignal = 64;

template <typename Values>
Json list_of(const char* name, const Values& values) {
  Json list = Json::array();
  for (const auto& value : values) list.push_back(to_wire(value));
  return {{name, std::move(list)}};
}

// What is larger would be something else where it is used.
std::uint64_t required(const Json& body, const char* name, std::uint64_t most) {
  const std::uint64_t value = json_u64(body, name);
  if (value > most) throw usage_error(quote(name) + " is larger than " + std::to_string(most));
  return value;
}

// "KEY" or "KEY=VALUE", one per line: a query has no list.
std::map<std::string, std::string> labels_of(const std::string& text) {
  std::map<std::string, std::string> labels;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t equals = std::min(line.find('='), line.size());
    if (equals > 0) labels[line.substr(0, equals)] = line.substr(std::min(equals + 1, line.size()));
    begin = end + 1;
  }
  return labels;
}

void write_frame(int to, FrameKind kind, std::string_view payload) { write_all(to, frame(kind, payload)); }
void write_record(int to, const Json& value) { write_all(to, frame(FrameKind::Record, value)); }

void write_data(int to, std::string_view bytes) {
  while (!bytes.empty()) {
    write_frame(to, FrameKind::Data, bytes.substr(0, kPart));
    bytes.remove_prefix(std::min(kPart, bytes.size()));
  }
}

// Of a pipe: whether anybody reads it still.
bool is_read(int to) {
  pollfd reader{to, 0, 0};
  return ::poll(&reader, 1, 0) == 0;
}

void write_logs(Engine& engine, const Asked& asked, int to) {
  engine::LogOptions options{
      .follow = asked.flag("follow"), .tail = {}, .exec_id = asked.text("exec_id"), .go_on = [to] {
        return is_read(to);
      }};
  if (const auto tail = asked.number("tail")) options.tail = static_cast<std::size_t>(*tail);
  engine.logs(asked.id(), options, [&](engine::ExecEvent::Kind kind, auto time, std::string_view data) {
    const auto count = std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
    for (; !data.empty(); data.remove_prefix(std::min(kPart / 2, data.size())))
      write_record(to, {{"stream", kind == engine::ExecEvent::Kind::Stderr ? "stderr" : "stdout"},
                        {"time_us", count},
                        {"data", json_bytes(data.substr(0, kPart / 2))}});
  });
  write_frame(to, FrameKind::End, {});
}

void write_events(Engine& engine, const Asked& asked, int to) {
  const std::unique_ptr<engine::FileWatch> watch =
      engine.watch(asked.id(), asked.text("path"), asked.flag("recursive"));
  // Whoever makes changes must know when they begin to count.
  write_record(to, {{"watching", true}});
  for (;;) {
    const std::optional<engine::FileEvent> event = watch->next(engine::kGoOnInterval);
    if (event) write_record(to, to_wire(*event));
    if (event && event->kind == engine::FileEvent::Kind::Ended) break;
    if (!is_read(to)) return;
  }
  write_frame(to, FrameKind::End, {});
}

void write_answer(Engine& engine, const Asked& asked, int to) {
  engine::HttpRequest request = http_request_from_wire(*asked.body);
  request.operation = asked.context;
  if (!request.timeout) request.timeout = kSilentServer;
  engine.http(asked.id(), asked.port(), request,
              {[&](const engine::HttpResponse& response) { write_record(to, to_wire(response)); },
               [&](std::string_view piece) { write_data(to, piece); }});
  write_frame(to, FrameKind::End, {});
}

void write_picture(Engine& engine, const Asked& asked, int to) {
  write_data(to, engine.screenshot(asked.id(), asked.context));
  write_frame(to, FrameKind::End, {});
}

// As an export, which has all that lies beside the log, and with its secrets: the client is to see what is here.
void write_trajectory(Engine& engine, const Asked& asked, int to) {
  const engine::Trajectory trajectory = engine.trajectory(asked.id());
  const UniqueFd file = engine::unnamed_file();
  engine::export_trajectory(trajectory, engine::SecretMask(std::vector<std::string>{}), file.get());
  write_record(to, {{"live", trajectory.live}, {"damage", trajectory.damage}});
  std::string part(kPart, '\0');
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(file.get(), part.data(), part.size(), at);
    if (got < 0) throw system_error("read the export");
    if (got == 0) break;
    write_frame(to, FrameKind::Data, std::string_view(part).substr(0, static_cast<std::size_t>(got)));
    at += got;
  }
  write_frame(to, FrameKind::End, {});
}

Json made_json(Engine& engine, const Asked& asked) {
  const auto wanted = asked.body->find("spec");
  if (wanted == asked.body->end()) throw usage_error("'spec' is missing");
  const SandboxSpec spec = sandbox_spec_from_json(*wanted);
  const engine::MadeSandbox made = asked.context.op_id.empty() ? engine::MadeSandbox{engine.create(spec), true}
                                                               : engine.create_once(spec, asked.context.op_id);
  return {{"sandbox", to_wire(made.info)}, {"made", made.now}};
}

}  // namespace

Asked::Asked(const HttpHead& head, const std::string& text) {
  Found found = find_route(head.method, head.target);
  route = found.route;
  parameters = std::move(found.parameters);
  context.op_id = head.header("dsec-op-id");
  check_op_id(context.op_id);
  if (const std::string origin = head.header("dsec-origin"); !origin.empty()) context.origin = origin_from(origin);
  context.recorded = head.header("dsec-recorded") != "false";
  body = std::make_shared<const Json>(text.empty() ? Json::object() : parse_json(text, "the body"));
  if (!body->is_object()) throw usage_error("the body is no JSON object");
}

std::string Asked::text(const char* name) const {
  const auto found = parameters.find(name);
  return found == parameters.end() ? "" : found->second;
}

bool Asked::flag(const char* name) const {
  const std::string value = text(name);
  if (value != "" && value != "true" && value != "false")
    throw usage_error("'" + std::string(name) + "' is true or false, and not " + quote(value));
  return value == "true";
}

std::optional<std::uint64_t> Asked::number(const char* name) const {
  const std::string value = text(name);
  if (value.empty()) return std::nullopt;
  std::uint64_t result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size())
    throw usage_error("'" + std::string(name) + "' is a number, and not " + quote(value));
  return result;
}

std::uint16_t Asked::port() const {
  const std::uint64_t port = number("port").value_or(0);
  if (port == 0 || port > 65535) throw usage_error("port " + quote(text("port")) + " is none");
  return static_cast<std::uint16_t>(port);
}

Work work_of(Call call) {
  switch (call) {
    case Call::Health:
      return Work::AtOnce;
    case Call::Wait:
      return Work::End;
    case Call::Exec:
    case Call::Attach:
    case Call::RunInSession:
      return Work::Command;
    case Call::Connect:
    case Call::ConnectScreen:
      return Work::Bytes;
    case Call::Logs:
    case Call::ChangeContent:
    case Call::CopyOut:
    case Call::CopyIn:
    case Call::Watch:
    case Call::Http:
    case Call::Screenshot:
    case Call::Trajectory:
      return Work::Transfer;
    case Call::Inspect:
    case Call::Commands:
    case Call::Signal:
    case Call::Sessions:
    case Call::Stats:
    case Call::Network:
    case Call::NetworkLog:
    case Call::Recorded:
    case Call::Layer:
      return Work::Quick;
    default:
      return Work::Slow;
  }
}

Json carry_out(Engine& engine, const Asked& asked) {
  const Json& body = *asked.body;
  Json done = Json::object();
  switch (asked.route->call) {
    case Call::Create:
      return made_json(engine, asked);
    case Call::List:
      return list_of("sandboxes", engine.list({.all = asked.flag("all"), .labels = labels_of(asked.text("labels"))}));
    case Call::Inspect:
      return to_wire(engine.inspect(asked.id()));
    case Call::Remove:
      engine.remove(asked.id(), asked.flag("force"));
      return done;
    case Call::Update: {
      engine::UpdateRequest request = update_from_wire(body);
      request.operation = asked.context;
      return to_wire(engine.update(asked.id(), request));
    }
    case Call::Stop:
      engine.stop(asked.id(), milliseconds(required(body, "grace_ms", kLongestGrace)), asked.context);
      return done;
    case Call::Pause:
      engine.pause(asked.id(), asked.context);
      return done;
    case Call::Resume:
      engine.resume(asked.id(), asked.context);
      return done;
    case Call::Commands:
      return list_of("commands", engine.commands(asked.id()));
    case Call::Signal:
      engine.signal(asked.id(), asked.text("exec_id"), static_cast<int>(required(body, "signal", kLastSignal)),
                    asked.context);
      return done;
    case Call::ScreenInput:
      engine.screen_input(asked.id(), engine::screen_input_from(body), asked.context);
      return done;
    case Call::OpenSession: {
      SessionSpec spec = session_spec_from_wire(body);
      spec.operation = asked.context;
      return to_wire(engine.open_session(asked.id(), spec));
    }
    case Call::Sessions:
      return list_of("sessions", engine.sessions(asked.id()));
    case Call::CloseSession:
      engine.close_session(asked.id(), asked.text("session"), asked.context);
      return done;
    case Call::Stats:
      return to_wire(engine.stats(asked.id()));
    case Call::Changes:
      return list_of("changes", engine.diff(asked.id()));
    case Call::ChangeStat:
      return list_of("changes", engine.diff_stat(asked.id()));
    case Call::Snapshot: {
      engine::SnapshotRequest request = snapshot_request_from_wire(body);
      request.operation = asked.context;
      return engine::snapshot_json(engine.snapshot(asked.id(), request));
    }
    case Call::Fork: {
      engine::ForkRequest request = fork_request_from_wire(body);
      request.operation = asked.context;
      return list_of("sandboxes", engine.fork(asked.id(), request));
    }
    case Call::Network:
      return to_wire(engine.network(asked.id()));
    case Call::SetNetwork:
      return {{"plan", dsec::to_json(engine.set_network(asked.id(), network_change_from_wire(body), asked.context))}};
    case Call::NetworkLog:
      return {{"lines", json_bytes(engine.network_log(asked.id(), asked.number("from").value_or(0)))}};
    case Call::Recorded: {
      const std::optional<Operation> operation = engine.recorded(asked.id(), asked.text("op_id"));
      return {{"operation", operation ? to_wire(*operation) : Json(nullptr)}};
    }
    case Call::Trajectories: {
      std::vector<std::string> problems;
      Json list = list_of("trajectories", engine.trajectories(problems));
      list["problems"] = problems;
      return list;
    }
    case Call::RemoveTrajectory:
      engine.remove_trajectory(asked.id());
      return done;
    case Call::Layer:
      return to_wire(engine.layer(LayerRef::parse(asked.text("ref"))));
    default:
      throw Error(ErrorKind::Internal, std::string(asked.route->name) + " is no question with one answer");
  }
}

std::unique_ptr<engine::ExecStream> start_command(Engine& engine, const Asked& asked) {
  switch (asked.route->call) {
    case Call::Exec: {
      ExecSpec spec = exec_spec_from_wire(*asked.body);
      spec.operation = asked.context;
      return engine.exec(asked.id(), spec);
    }
    case Call::RunInSession: {
      SessionCommand command = session_command_from_wire(*asked.body);
      command.operation = asked.context;
      return engine.run_in_session(asked.id(), asked.text("session"), command);
    }
    default:
      return engine.attach(asked.id(), asked.text("exec_id"),
                           {asked.number("stdout_from").value_or(0), asked.number("stderr_from").value_or(0)});
  }
}

UniqueFd connect_bytes(Engine& engine, const Asked& asked) {
  return asked.route->call == Call::ConnectScreen ? engine.connect_screen(asked.id())
                                                  : engine.connect(asked.id(), asked.port());
}

void write_frames(Engine& engine, const Asked& asked, int to) {
  switch (asked.route->call) {
    case Call::Logs:
      return write_logs(engine, asked, to);
    case Call::Watch:
      return write_events(engine, asked, to);
    case Call::Http:
      return write_answer(engine, asked, to);
    case Call::Screenshot:
      return write_picture(engine, asked, to);
    default:
      return write_trajectory(engine, asked, to);
  }
}

}  // namespace dsec::remote
