#include <linux/eventpoll.h>

#include "runners/guest/machine_channel.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

// The guest's keeper ends a command that takes too long, with all that it has started. It has this long for it.
// Emulated on a busy host, a system takes its time.
constexpr uint64_t kTurnOffTime = 120'000'000;
constexpr uint64_t kGuestPatience = 20'000'000;
constexpr size_t kInputBacklog = 64u << 10;
// Of what the guest's keeper says; a command's output comes in pieces of 64 KiB.
constexpr uint32_t kLongestFrame = 1u << 20;
constexpr size_t kQuestions = 64;

// Who has asked something on stream 0, in the order of the answers.
struct Question {
  Client* client;  ///< null: nobody (any more)
  bool rest;       ///< ours: whether the guest has come to rest
};
struct Questions {
  Question items[kQuestions];
  unsigned count;
} questions;

bool ask_guest(channel::Type type, const Question& question, const void* data, size_t size) {
  if (!has_machine() || questions.count == kQuestions) return false;
  questions.items[questions.count++] = question;
  send_control(type, static_cast<const char*>(data), size);
  return true;
}

// Sessions of the guest, as it has told of them.
struct KnownSession {
  KnownSession* next;
  uint32_t number;
  bool tty;
  Buffer name;
};
KnownSession* known_sessions;
Buffer end_reason;

void refuse(Client& client, const char* step, const char* object, long result) {
  Failure failure = {};
  failure.set(step, object, result);
  send_failure(client, failure);
}

uint32_t number_of(const Text& text) {
  uint32_t number = 0;
  for (uint32_t i = 0; i < text.size; ++i) {
    if (text.data[i] < '0' || text.data[i] > '9' || number > 100'000'000) return 0;
    number = number * 10 + static_cast<uint32_t>(text.data[i] - '0');
  }
  return number;
}

const KnownSession* find_session(const Text& text) {
  const uint32_t number = number_of(text);
  for (const KnownSession* known = known_sessions; known; known = known->next) {
    if (number && known->number == number) return known;
    if (text.size && known->name.size == text.size && memcmp(known->name.data, text.data, text.size) == 0) return known;
  }
  return nullptr;
}

void lose_command(Command& command, const Failure& failure) {
  leave_stream(command);
  command.result.cause = wire::Cause::Lost;
  command.result.failure = failure;
  end_command(command);
}

// The request as it came, but for what concerns the sandbox's end and this keeper's clients.
void ask_for_command(Command& command) {
  static constexpr uint16_t kKeeper = static_cast<uint16_t>(channel::Service::Keeper);
  GuestStream* const stream =
      open_guest_stream(GuestStream::Kind::Command, reinterpret_cast<const char*>(&kKeeper), sizeof kKeeper);
  Failure failure = {};
  if (!stream) {
    failure.set("run it in the guest, which cannot be reached", "", -ENOTCONN);
    return lose_command(command, failure);
  }
  stream->command = &command;
  command.stream = stream;
  if (command.session) {
    put_frame(*stream, wire::Type::SessionRun, command.frame.data, command.asked_size);
  } else {
    uint32_t flags = 0;
    memcpy(&flags, command.frame.data, sizeof flags);
    flags = (flags & (wire::kExecTty | wire::kExecStdin)) | wire::kExecTied;
    put_frame(*stream, wire::Type::Exec, &flags, sizeof flags, command.frame.data + sizeof flags,
              command.asked_size - sizeof flags);
  }
}

}  // namespace

void leave_stream(Command& command) {
  GuestStream* const stream = command.stream;
  command.stream = nullptr;
  if (stream) leave(*stream);
}

void end_with_guest(const char* why) {
  if (!(keeper.config.flags & wire::kStartConsole)) return begin_end("failed", why);
  if (keeper.leave_us) return;
  keeper.leave_us = monotonic_us() + kTurnOffTime;
  keeper.leave_reason = why;
}

// As a command that is there from the beginning and is no operation: what it says is spooled, shown and bounded as the
// output of others is, and it has a terminal's ways.
void open_console(int ours) {
  static char name[] = "console";
  Command* const console = make_command();
  add_command(*console, 0);
  console->console = console->tty = console->has_stdin = console->detached = true;
  console->argv.items = static_cast<char**>(allocate(2 * sizeof(char*)));
  console->argv.items[0] = name;
  console->argv.items[1] = nullptr;
  console->argv.count = 1;
  const long copy = sys(__NR_fcntl, ours, F_DUPFD_CLOEXEC, 0);
  set_nonblocking(ours);
  console->output.fd = ours;
  console->input.fd = static_cast<int>(copy);
  watch(console->output, EPOLLIN);
  record_main(*console);
}

void enter_machine_command(Command& command) {
  command.starting = false;
  command.start_us = monotonic_us();
  command.deadline_us = command.timeout_ms ? command.start_us + command.timeout_ms * 1000 + kGuestPatience : 0;
  if (command.main) write_state();
  tell_start(command);
  ask_for_command(command);
  if (command.ended) return;
  for (uint32_t signal = 1; signal <= 64; ++signal)
    if (command.early_signals >> (signal - 1) & 1) signal_machine_command(command, signal);
  if (command.pending_input.size) {
    Buffer input = command.pending_input;
    command.pending_input = {};
    feed_machine_command(command, input.data, input.size);
    input.clear();
  }
  if (command.input_ends) put_frame(*command.stream, wire::Type::StdinEof, nullptr, 0);
}

void feed_machine_command(Command& command, const char* data, size_t size) {
  if (!command.has_stdin) return;
  if (!command.stream) {
    if (command.starting) command.pending_input.append(data, size);
    return;
  }
  // In small pieces, so that none fills the window on its own.
  while (size) {
    const size_t part = size < channel::kMaxData ? size : channel::kMaxData;
    put_frame(*command.stream, wire::Type::Stdin, data, part);
    data += part;
    size -= part;
  }
}

void end_machine_input(Command& command) {
  if (!command.has_stdin || command.input_ends) return;
  // At a terminal it is a sign, which may come again.
  if (!command.tty) command.input_ends = true;
  if (command.stream) put_frame(*command.stream, wire::Type::StdinEof, nullptr, 0);
}

bool machine_input_is_full(const Command& command) {
  return command.stream && command.stream->out.size >= kInputBacklog;
}

void resize_machine_command(Command& command, uint16_t rows, uint16_t columns) {
  const uint16_t size[] = {rows, columns};
  if (command.stream) put_frame(*command.stream, wire::Type::Resize, size, sizeof size);
}

void signal_machine_command(Command& command, uint32_t number) {
  if (!number) return;
  if (command.stream) return put_frame(*command.stream, wire::Type::Signal, &number, sizeof number);
  if (command.starting) command.early_signals |= uint64_t{1} << (number - 1);
}

void check_machine_timeout(Command& command, uint64_t) {
  leave_stream(command);
  command.timed_out = true;
  command.result.cause = wire::Cause::TimedOut;
  command.result.signal = 9;
  end_command(command);
}

namespace {

void on_result(Command& command, wire::Reader& reader) {
  Result& result = command.result;
  const uint32_t cause = reader.u32();
  result.cause = static_cast<wire::Cause>(cause);
  result.exit_code = reader.u32();
  result.signal = reader.u32();
  for (int skipped = 0; skipped < 5; ++skipped) reader.u64();  // duration and counts are ours
  const uint32_t error = reader.u32();
  const Text step = reader.str(), object = reader.str();
  result.session_ended = reader.u32() != 0;
  result.oom_kills = reader.u64();
  result.memory_limit = reader.u64();
  result.memory_peak = reader.u64();
  if (!reader.ok() || cause > static_cast<uint32_t>(wire::Cause::Lost)) {
    Failure failure = {};
    failure.set("read the result that the guest tells", "", -EPROTO);
    return lose_command(command, failure);
  }
  if (step.size) {
    command.guest_step.append(step.data, size_t{step.size} + 1);
    command.failure_object.append(object.data, size_t{object.size} + 1);
    // record_end() keeps the object, from a text that is not its own.
    Buffer copy = command.failure_object;
    command.failure_object = {};
    result.failure.set(command.guest_step.data, copy.data, -static_cast<long>(error));
    leave_stream(command);
    end_command(command);
    copy.clear();
    return;
  }
  leave_stream(command);
  end_command(command);
}

void on_failure(Command& command, wire::Reader& reader) {
  const uint32_t error = reader.u32();
  const Text step = reader.str(), object = reader.str();
  Failure failure = {};
  if (!reader.ok()) {
    failure.set("read what the guest tells", "", -EPROTO);
    return lose_command(command, failure);
  }
  command.guest_step.append(step.data, size_t{step.size} + 1);
  Buffer copy = {};
  copy.append(object.data, size_t{object.size} + 1);
  failure.set(command.guest_step.data, copy.data, -static_cast<long>(error));
  lose_command(command, failure);
  copy.clear();
}

void on_command_frame(Command& command, wire::Type type, const char* data, size_t size) {
  wire::Reader reader(data, size);
  switch (type) {
    case wire::Type::ExecStarted:
      command.guest_id.size = 0;
      return command.guest_id.append(data, size < 16 ? size : 16);
    case wire::Type::Stdout:
    case wire::Type::Stderr:
      if (size < sizeof(uint64_t)) return;
      return deliver(command, type == wire::Type::Stderr, data + sizeof(uint64_t), size - sizeof(uint64_t));
    case wire::Type::Exited:
      return on_result(command, reader);
    case wire::Type::Failed:
      return on_failure(command, reader);
    default:
      return;
  }
}

// The latest of a name comes first.
void remember(uint32_t number, const Text& name, bool tty) {
  for (KnownSession* known = known_sessions; known; known = known->next)
    if (known->number == number) return;
  KnownSession* const known = make<KnownSession>();
  known->number = number;
  known->tty = tty;
  known->name.append(name.data, name.size);
  known->next = known_sessions;
  known_sessions = known;
}

// What the guest calls a running command means nothing to our clients.
void pass_on_session(Client& client, const char* data, size_t size) {
  wire::Reader reader(data, size);
  const Text id = reader.str(), name = reader.str();
  const uint32_t tty = reader.u32();
  const uint64_t opened_us = reader.u64();
  const uint32_t commands = reader.u32();
  const Text running = reader.str();
  if (!reader.ok()) return;
  remember(number_of(id), name, tty);
  const char* own = "";
  for (const Command* command = keeper.commands; command && running.size; command = command->next)
    if (!command->ended && command->guest_id.size == running.size &&
        memcmp(command->guest_id.data, running.data, running.size) == 0)
      own = command->id;
  Buffer text = {};
  wire::Writer<Buffer> writer(text);
  writer.str(id.data, id.size).str(name.data, name.size).u32(tty).u64(opened_us).u32(commands);
  writer.str(own, strlen(own)).raw(reader.rest(), reader.left());
  send(client, wire::Type::Session, text.data, text.size);
  text.clear();
}

void on_answer(GuestStream& stream, wire::Type type, const char* data, size_t size) {
  Client& client = *stream.client;
  const bool is_session = type == wire::Type::Session;
  if (is_session) {
    pass_on_session(client, data, size);
  } else if (type == wire::Type::Failed || type == wire::Type::Done) {
    send(client, type, data, size);
  } else {
    refuse(client, "read what the guest tells", "", -EPROTO);
  }
  if (!is_session || stream.question == wire::Type::SessionOpen) leave(stream);
}

void read_wire_frames(GuestStream& stream) {
  while (!stream.left && stream.in.size >= sizeof(wire::FrameHeader)) {
    wire::FrameHeader header;
    memcpy(&header, stream.in.data, sizeof header);
    if (header.length > kLongestFrame) return lose_machine("its guest broke the protocol of its keeper");
    if (stream.in.size < sizeof header + header.length) return;
    // What is told may end the stream, and its buffer with it.
    Buffer frame = {};
    frame.append(stream.in.data + sizeof header, header.length);
    stream.in.consume(sizeof header + header.length);
    if (stream.kind == GuestStream::Kind::Command) {
      on_command_frame(*stream.command, header.type, frame.data, frame.size);
    } else {
      on_answer(stream, header.type, frame.data, frame.size);
    }
    frame.clear();
  }
}

void update_relay(GuestStream& stream) {
  if (stream.socket.fd < 0) return;
  // Both directions have ended, which epoll would tell again and again: the guest's last word is all that is waited
  // for.
  if (stream.ends && stream.guest_ends && !stream.in.size) return unwatch(stream.socket);
  // Told in any case, as is that the other end is gone.
  uint32_t events = EPOLLERR;
  if (!stream.ends && stream.out.size < kInputBacklog) events |= EPOLLIN;
  if (stream.in.size) events |= EPOLLOUT;
  watch(stream.socket, events);
}

void end_relay(GuestStream& stream) {
  if (stream.client) {
    Buffer text = {};
    wire::Writer<Buffer> writer(text);
    writer.u32(stream.error).str(stream.message.data ? stream.message.data : "", stream.message.size);
    send(*stream.client, wire::Type::Relayed, text.data, text.size);
    text.clear();
  }
  leave(stream);
}

void drain_relay(GuestStream& stream) {
  size_t done = 0;
  bool gone = false;
  while (done < stream.in.size && !gone) {
    const long sent = send_some(stream.socket.fd, stream.in.data + done, stream.in.size - done);
    if (sent == -EINTR) continue;
    if (sent == -EAGAIN) break;
    gone = sent <= 0;
    if (!gone) done += static_cast<size_t>(sent);
  }
  stream.in.consume(done);
  take(stream, done);
  if (gone) return leave(stream);
  if (stream.in.size) return;
  constexpr int kWriting = 1;
  if (stream.closed) return end_relay(stream);
  if (stream.guest_ends) sys(__NR_shutdown, stream.socket.fd, kWriting);
}

}  // namespace

void on_relay(GuestStream& stream, uint32_t events) {
  if (stream.goes_out()) return on_egress(stream, events);
  if (stream.left) return;
  if (events & EPOLLOUT) drain_relay(stream);
  if (!stream.left && events & EPOLLIN && !stream.ends) {
    char bytes[16384];
    const long got = read_fd(stream.socket.fd, bytes, sizeof bytes);
    if (got > 0) put(stream, bytes, static_cast<size_t>(got));
    // What its writer did not end itself is not whole.
    const bool whole = stream.detached || stream.client;
    if (got == 0 && whole && !(events & EPOLLHUP)) put_end(stream);
    if ((got == 0 && (!whole || events & EPOLLHUP)) || (got < 0 && got != -EAGAIN && got != -EINTR)) leave(stream);
  } else if (!stream.left && events & (EPOLLHUP | EPOLLERR)) {
    leave(stream);
  }
  if (!stream.left) update_relay(stream);
}

void relay(Client& client, wire::Reader& reader) {
  const uint32_t flags = reader.u32();
  if (!reader.ok()) return;
  if (!keeper.config.is_machine() || client.fd_count != 1) {
    return refuse(client, "open a stream to the guest", "", keeper.config.is_machine() ? -EINVAL : -EOPNOTSUPP);
  }
  GuestStream* const stream = open_guest_stream(GuestStream::Kind::Relay, reader.rest(), reader.left());
  if (!stream) return refuse(client, "open a stream to the guest, which cannot be reached", "", -ENOTCONN);
  stream->socket.fd = client.fds[0];
  client.fd_count = 0;
  set_nonblocking(stream->socket.fd);
  stream->client = &client;
  stream->detached = flags & wire::kRelayDetached;
  update_relay(*stream);
}

void control_machine(Client& client, wire::Reader& reader) {
  const auto type = static_cast<channel::Type>(reader.u16());
  if (!reader.ok()) return;
  const bool known = type == channel::Type::Statistics || type == channel::Type::Thaw || type == channel::Type::Rewrite;
  if (known && type == channel::Type::Rewrite) wake();
  if (!known || !ask_guest(type, {&client, false}, reader.rest(), reader.left()))
    return refuse(client, "ask the guest, which cannot be reached", "", known ? -ENOTCONN : -EINVAL);
}

bool ask_quiescence(Client& client) {
  if (!has_machine() || keeper.ending || questions.count + 2 > kQuestions) return false;
  questions.items[questions.count++] = {&client, false};
  // Of its end, which goes ahead of all that is asked meanwhile.
  questions.items[questions.count++] = {};
  begin_silence();
  return true;
}

void tell_time() {
  const uint64_t now = wall_time_us();
  if (!keeper.ending) ask_guest(channel::Type::Clock, {}, &now, sizeof now);
}

bool ask_to_rest() { return !keeper.ending && ask_guest(channel::Type::Rest, {nullptr, true}, nullptr, 0); }

void on_control_frame(channel::Type type, const char* data, size_t size) {
  if (type == channel::Type::Ended) {
    if (keeper.ending) return;
    wire::Reader reader(data, size);
    const Text reason = reader.str();
    end_reason.append("its guest ended: ");
    end_reason.append(reason.data, reason.size < 200 ? reason.size : 200);
    end_reason.append("", 1);
    return end_with_guest(end_reason.data);
  }
  if (!questions.count) return lose_machine("its guest answers what was not asked");
  const Question question = questions.items[0];
  memmove(questions.items, questions.items + 1, --questions.count * sizeof questions.items[0]);
  const auto number = static_cast<uint16_t>(type);
  if (question.rest) on_rest();
  if (question.client) send(*question.client, wire::Type::Controlled, &number, sizeof number, data, size);
}

void ask_machine(Client& client, wire::Type type, const char* data, size_t size) {
  static constexpr uint16_t kKeeper = static_cast<uint16_t>(channel::Service::Keeper);
  GuestStream* const stream =
      open_guest_stream(GuestStream::Kind::Question, reinterpret_cast<const char*>(&kKeeper), sizeof kKeeper);
  if (!stream) return refuse(client, "ask the guest, which cannot be reached", "", -ENOTCONN);
  stream->client = &client;
  stream->question = type;
  put_frame(*stream, type, data, size);
}

void run_in_machine_session(Client& client, const char* frame, size_t size) {
  wire::Reader reader(frame, size);
  const Text id = reader.str();
  const uint32_t flags = reader.u32();
  reader.u32();  // rows and columns
  const uint64_t timeout_ms = reader.u64(), output_limit = reader.u64();
  const Text text = reader.str();
  const size_t asked = static_cast<size_t>(reader.rest() - frame);
  OperationRequest request = {};
  request.kind = "session";
  request.op_id = reader.str();
  request.origin = reader.u32();
  request.request = reader.str();
  if (!reader.ok()) return refuse(client, "read the request", "", -EPROTO);
  if (find_named(request.op_id)) return send(client, wire::Type::Known, nullptr, 0);
  const KnownSession* const session = find_session(id);
  if (!session) return refuse(client, "find session", id.data, -ENOENT);
  if (keeper.ending) return refuse(client, "execute in a sandbox that is ending", "", 0);
  for (const Command* other = keeper.commands; other; other = other->next)
    if (other->session == session->number && !other->ended)
      return refuse(client, "run a second command in session", id.data, -EBUSY);

  Command* const command = make_command();
  write_number(command->id, keeper.command_count + 1);
  request.exec_id = command->id;
  Failure failure = {};
  if (!begin_operation(command->operation, request, failure)) {
    destroy(command);
    return send_failure(client, failure);
  }
  add_command(*command, output_limit);
  ++keeper.running_count;
  command->timeout_ms = timeout_ms;
  command->session = session->number;
  command->tty = session->tty;
  command->detached = flags & wire::kExecDetach;
  command->has_stdin = session->tty || flags & wire::kExecStdin;
  // What is asked, then no op_id, the origin and no record: the guest does not know of them. Its argv is its text.
  static constexpr char kUnrecorded[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, '{', '}', 0};
  command->frame.append(frame, asked);
  command->frame.append(kUnrecorded, sizeof kUnrecorded);
  command->asked_size = command->frame.size;
  const size_t text_at = command->frame.size;
  command->frame.append(text.data, size_t{text.size} + 1);
  command->argv.items = static_cast<char**>(allocate(2 * sizeof(char*)));
  command->argv.items[0] = command->frame.data + text_at;
  command->argv.items[1] = nullptr;
  command->argv.count = 1;
  client.command = command;
  client.owns_input = command->has_stdin;
  client.started = client.awaits_start = true;
  begin_when_recorded(*command);
}

void forget_machine_client(Client& client) {
  end_quiescence(client);
  if (&client == keeper.creator) {
    keeper.creator = nullptr;
    // Nobody else would ever bring the channel.
    keeper.unmade = keeper.config.is_machine() && !keeper.machine_began && !keeper.ending;
    if (keeper.unmade) begin_end("failed", "who made it went before its machine was ready");
  }
  for (unsigned i = 0; i < questions.count; ++i)
    if (questions.items[i].client == &client) questions.items[i].client = nullptr;
  for (GuestStream* stream = all_streams(); stream; stream = stream->next) {
    if (stream->client != &client) continue;
    stream->client = nullptr;
    if (stream->kind == GuestStream::Kind::Question || !stream->detached) leave(*stream);
  }
}

void on_stream_data(GuestStream& stream, const char* data, size_t size) {
  if (stream.goes_out()) return on_egress_data(stream, data, size);
  if (stream.kind == GuestStream::Kind::Relay) {
    stream.in.append(data, size);
    drain_relay(stream);
    if (!stream.left) update_relay(stream);
    return;
  }
  stream.in.append(data, size);
  read_wire_frames(stream);
  if (!stream.left) take(stream, size);
}

void on_stream_end(GuestStream& stream) {
  if (stream.goes_out()) return on_egress_end(stream);
  if (stream.kind != GuestStream::Kind::Relay) return;
  drain_relay(stream);
  if (!stream.left) update_relay(stream);
}

void on_stream_closed(GuestStream& stream) {
  if (stream.goes_out()) return on_egress_closed(stream);
  if (stream.kind == GuestStream::Kind::Relay) {
    drain_relay(stream);
    if (!stream.left) update_relay(stream);
    return;
  }
  Failure failure = {};
  failure.set("hear of its end: the guest closed its stream", "", -static_cast<long>(stream.error));
  if (stream.kind == GuestStream::Kind::Command) return lose_command(*stream.command, failure);
  if (stream.client) send_failure(*stream.client, failure);
  leave(stream);
}

void on_stream_room(GuestStream& stream) {
  if (stream.goes_out()) return update_egress(stream);
  if (stream.kind == GuestStream::Kind::Relay) return update_relay(stream);
  for (Client* client = keeper.clients; client && stream.command; client = client->next)
    if (client->command == stream.command) on_client(*client, 0);
}

}  // namespace dsec::guest
