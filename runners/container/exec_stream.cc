#include "runners/container/exec_stream.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/engine/recording.h"
#include "core/engine/spool_reader.h"
#include "core/model/operation.h"
#include "runners/container/state_file.h"

namespace dsec::runners {
using engine::ExecEvent;
using std::chrono::milliseconds;
namespace {

// Attached and output frames, decoded.
struct Output {
  ExecEvent::Kind kind;
  std::chrono::system_clock::time_point time;
  std::string_view data;
};

Output output_of(const Frame& frame) {
  wire::Reader reader = frame.reader();
  const std::uint64_t time = reader.u64();
  if (!reader.ok()) throw failure("the sandbox's keeper broke the protocol");
  return {frame.type == wire::Type::Stderr ? ExecEvent::Kind::Stderr : ExecEvent::Kind::Stdout,
          std::chrono::system_clock::time_point(std::chrono::microseconds(time)),
          {reader.rest(), reader.left()}};
}

// What a command had written when we attached to it.
void replay(Frame& attached, const engine::SpoolSink& sink) {
  wire::Reader reader = attached.reader();
  reader.str();
  const std::uint64_t dropped[2] = {reader.u64(), reader.u64()};
  const std::uint32_t count = reader.u32();
  if (!reader.ok() || count != attached.descriptors.size()) throw failure("the sandbox's keeper broke the protocol");
  std::vector<engine::SpoolPart> parts;
  for (UniqueFd& file : attached.descriptors) parts.push_back({std::move(file), reader.u64()});
  engine::read_spool(parts, dropped, sink);
}

// Passes over what a reader has had of a stream already. What was dropped from the middle counts as had: nobody can
// have it any more.
class Skip {
 public:
  explicit Skip(const engine::AttachFrom& from) : left_{from.stdout_bytes, from.stderr_bytes} {}

  std::string_view rest(unsigned stream, std::string_view data) {
    const std::size_t passed = static_cast<std::size_t>(std::min<std::uint64_t>(left_[stream], data.size()));
    left_[stream] -= passed;
    return data.substr(passed);
  }

 private:
  std::uint64_t left_[2];
};

std::deque<ExecEvent> early_events(const engine::AttachFrom& from,
                                   const std::function<void(const engine::SpoolSink&)>& read) {
  std::deque<ExecEvent> events;
  Skip skip(from);
  read([&](unsigned stream, auto, std::string_view data) {
    data = skip.rest(stream, data);
    if (!data.empty())
      events.push_back({stream ? ExecEvent::Kind::Stderr : ExecEvent::Kind::Stdout, std::string(data), {}});
  });
  return events;
}

class ContainerExecStream final : public engine::ExecStream {
 public:
  // `early` comes before what the keeper sends. It may be large, and its reader asks for one event after the other.
  ContainerExecStream(std::filesystem::path directory, Channel channel, std::string exec_id,
                      std::deque<ExecEvent> early = {})
      : directory_(std::move(directory)),
        channel_(std::move(channel)),
        exec_id_(std::move(exec_id)),
        early_(std::move(early)) {}

  const std::string& exec_id() const override { return exec_id_; }

  std::optional<ExecEvent> next(std::optional<milliseconds> timeout) override {
    if (!early_.empty()) {
      ExecEvent event = std::move(early_.front());
      early_.pop_front();
      return event;
    }
    const std::optional<Frame> frame = channel_.receive(timeout);
    if (!frame) return std::nullopt;
    switch (frame->type) {
      case wire::Type::Stdout:
      case wire::Type::Stderr: {
        const Output output = output_of(*frame);
        return ExecEvent{output.kind, std::string(output.data), {}};
      }
      case wire::Type::Exited:
        return ExecEvent{ExecEvent::Kind::Exited, "", read_result(frame->reader())};
      default:
        throw failure("the sandbox's keeper broke the protocol");
    }
  }

  // A socket counts as writable while three quarters of its buffer are free: 156 KiB by default.
  int descriptor() const override { return channel_.fd(); }

  void write_stdin(std::string_view bytes) override {
    while (!bytes.empty()) {
      const std::string_view part = bytes.substr(0, 64 << 10);
      send(wire::Type::Stdin, part);
      bytes.remove_prefix(part.size());
    }
  }
  void close_stdin() override { send(wire::Type::StdinEof, {}); }
  void resize(std::uint16_t rows, std::uint16_t columns) override {
    send(wire::Type::Resize, FrameText().u16(rows).u16(columns).text());
  }
  // Not behind input that waits for the command to read it: the signal may be what ends that wait.
  void signal(int signo) override {
    if (const std::optional<Channel> own = Channel::connect(directory_))
      own->send(wire::Type::SignalTo, FrameText().str(exec_id_).u32(static_cast<std::uint32_t>(signo)).text());
  }

 private:
  void send(wire::Type type, std::string_view text) {
    const std::lock_guard lock(sending_);
    channel_.send(type, text);
  }

  const std::filesystem::path directory_;
  Channel channel_;
  const std::string exec_id_;
  std::deque<ExecEvent> early_;
  std::mutex sending_;
};

// 0: none.
std::uint64_t count_of(const std::optional<milliseconds>& timeout) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(timeout ? timeout->count() : 0, 0));
}

}  // namespace

std::unique_ptr<engine::ExecStream> start_exec(const std::filesystem::path& directory, Channel channel,
                                               const ExecSpec& spec) {
  std::uint32_t flags = 0;
  if (spec.tty) flags |= wire::kExecTty;
  if (spec.open_stdin) flags |= wire::kExecStdin;
  if (spec.main) flags |= wire::kExecMain;
  if (spec.detach) flags |= wire::kExecDetach;
  FrameText text;
  text.u32(flags).u16(spec.rows).u16(spec.columns);
  text.u64(count_of(spec.timeout)).u64(spec.output_limit.value_or(0));
  text.str(spec.user).str(spec.workdir);
  text.strs(spec.argv).strs(spec.env);
  text.str(spec.operation.op_id).u32(static_cast<std::uint32_t>(spec.operation.origin));
  text.str(canonical_json(exec_request(spec)));
  const Frame answer = request(channel, wire::Type::Exec, text.text());
  if (answer.type == wire::Type::Known) return nullptr;
  return std::make_unique<ContainerExecStream>(directory, std::move(channel), answer.text);
}

std::unique_ptr<engine::ExecStream> attach_exec(const std::filesystem::path& directory, Channel channel,
                                                const std::string& exec_id, const engine::AttachFrom& from) {
  channel.send(wire::Type::Attach, FrameText().str(exec_id).text());
  Frame answer = *channel.receive();
  if (answer.type == wire::Type::Failed) return nullptr;
  std::deque<ExecEvent> early = early_events(from, [&](const engine::SpoolSink& sink) { replay(answer, sink); });
  return std::make_unique<ContainerExecStream>(directory, std::move(channel), exec_id, std::move(early));
}

std::unique_ptr<engine::ExecStream> replay_exec(const std::filesystem::path& directory, const engine::ExecInfo& info,
                                                const engine::AttachFrom& from) {
  const std::uint64_t dropped[2] = {info.result->stdout_dropped, info.result->stderr_dropped};
  std::deque<ExecEvent> events = early_events(from, [&](const engine::SpoolSink& sink) {
    engine::read_spool(engine::open_spool(directory, info.exec_id), dropped, sink);
  });
  events.push_back({ExecEvent::Kind::Exited, "", *info.result});
  return engine::ended_command(info.exec_id, std::move(events));
}

std::unique_ptr<engine::ExecStream> start_session_command(const std::filesystem::path& directory, Channel channel,
                                                          const std::string& session, const SessionCommand& command) {
  std::uint32_t flags = 0;
  if (command.open_stdin) flags |= wire::kExecStdin;
  if (command.detach) flags |= wire::kExecDetach;
  FrameText text;
  text.str(session).u32(flags).u16(command.rows).u16(command.columns);
  text.u64(count_of(command.timeout)).u64(command.output_limit.value_or(0)).str(command.text);
  text.str(command.operation.op_id).u32(static_cast<std::uint32_t>(command.operation.origin));
  text.str(canonical_json(session_request(session, command)));
  const Frame answer = request(channel, wire::Type::SessionRun, text.text());
  if (answer.type == wire::Type::Known) return nullptr;
  return std::make_unique<ContainerExecStream>(directory, std::move(channel), answer.text);
}

void follow_exec(Channel channel, const std::string& exec_id, const engine::LogSink& sink,
                 const std::function<void()>& caught_up, const std::function<bool()>& go_on) {
  Frame attached = request(channel, wire::Type::Attach, FrameText().str(exec_id).text());
  replay(attached, [&](unsigned stream, auto time, std::string_view data) {
    sink(stream ? ExecEvent::Kind::Stderr : ExecEvent::Kind::Stdout, time, data);
  });
  caught_up();
  const auto patience = go_on ? std::optional(engine::kGoOnInterval) : std::nullopt;
  for (;;) {
    const std::optional<Frame> frame = channel.receive(patience);
    if (!frame && !go_on()) return;
    if (!frame) continue;
    if (frame->type == wire::Type::Exited) return;
    const Output output = output_of(*frame);
    sink(output.kind, output.time, output.data);
  }
}

}  // namespace dsec::runners
