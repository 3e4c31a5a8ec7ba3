#include <asm/ioctls.h>
#include <asm/signal.h>
#include <asm/termios.h>
#include <linux/eventpoll.h>
#include <linux/net.h>
#include <linux/uio.h>

#include "runners/guest/keeper.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

// Beyond this a command waits for its slow reader; below it the reader has enough to be busy.
constexpr size_t kBacklog = 256u << 10;
constexpr size_t kInputBacklog = 64u << 10;

void update_events(Client& client) {
  uint32_t events = 0;
  const Command* const command = client.command;
  if (!command || (command->pending_input.size < kInputBacklog && !machine_input_is_full(*command))) events |= EPOLLIN;
  if (client.out.size) events |= EPOLLOUT;
  watch(client.source, events | EPOLLRDHUP);
}

// A terminal, and the input of a command that nobody stays with, are open for who attaches; another pipe is at its end
// without its writer.
bool waits_for_input(const Command& command) { return command.has_stdin && (command.tty || command.detached); }

void on_begun(void* owner, long error);
void on_end_recorded(void* owner, long error);

void forget(Client& client, ClientOperation& operation) {
  ClientOperation** at = &client.operations;
  while (*at != &operation) at = &(*at)->next;
  *at = operation.next;
  destroy(&operation);
}

// Writes its end, and goes on when that is on the disk where somebody relies on it.
void end_client_operation(ClientOperation& own, const char* outcome, const Buffer& members) {
  own.open = false;
  Failure failure = {};
  if (!end_operation(own.operation, outcome, members, failure)) return on_end_recorded(&own, -failure.error);
  if (!own.operation.named) return on_end_recorded(&own, 0);
  own.disk.owner = &own;
  own.disk.ready = on_end_recorded;
  await_disk(own.disk);
}

void interrupt(ClientOperation& own) {
  Buffer none = {};
  end_client_operation(own, "interrupted", none);
}

void on_begun(void* owner, long error) {
  ClientOperation& own = *static_cast<ClientOperation*>(owner);
  own.open = true;
  if (own.client->dead) return interrupt(own);
  if (!error) {
    send(*own.client, wire::Type::Begun, &own.operation.sequence, sizeof own.operation.sequence);
    return;
  }
  Failure failure = {};
  failure.set("flush the record of the operation", "", error);
  send_failure(*own.client, failure);
  interrupt(own);
}

void on_end_recorded(void* owner, long error) {
  ClientOperation& own = *static_cast<ClientOperation*>(owner);
  Client& client = *own.client;
  const uint64_t sequence = own.operation.sequence;
  if (NamedOperation* const named = own.operation.named) {
    named->done = true;
    tell_known(named);
  }
  forget(client, own);
  if (client.dead) return;
  Failure failure = {};
  failure.set("record the result", "", error);
  if (error) return send_failure(client, failure);
  send(client, wire::Type::Recorded, &sequence, sizeof sequence);
}

void close_descriptors(Client& client) {
  for (unsigned i = 0; i < client.fd_count; ++i) close_fd(client.fds[i]);
  client.fd_count = 0;
}

// As at a timeout that is over, with all that this kills, again and again until nothing is left.
void cut_off(Command& command) {
  command.timeout_ms = 1;
  if (!command.starting) command.deadline_us = monotonic_us();
}

void drop(Client& client) {
  if (client.dead) return;
  client.dead = true;
  close_descriptors(client);
  for (ClientOperation *own = client.operations, *next = nullptr; own; own = next) {
    next = own->next;
    if (own->open) interrupt(*own);
  }
  unwatch(client.source);
  close_fd(client.source.fd);
  forget_client(client);
  forget_machine_client(client);
  if (client.holds) release_hold(client);
  if (Command* const command = client.command) {
    client.command = nullptr;
    if (client.owns_input && !waits_for_input(*command)) end_input(*command);
    if (client.started && command->tied) cut_off(*command);
  }
  if (client.acts) note_activity();
}

Command* find_command(const Text& id) {
  Command* command = keeper.commands;
  while (command && (strlen(command->id) != id.size || memcmp(command->id, id.data, id.size) != 0)) {
    command = command->next;
  }
  return command;
}

void attach(Client& client, const Text& id) {
  Command* const command = find_command(id);
  if (!command || command->reported) {
    Failure failure = {};
    failure.set("find command", id.data, -ENOENT);
    send_failure(client, failure);
    return;
  }
  // The reader takes what is kept from the files themselves, up to these sizes; all after that comes as it is written.
  const Spool& spool = command->spool;
  Buffer text = {};
  wire::Writer<Buffer> writer(text);
  writer.str(command->id, strlen(command->id)).u64(spool.dropped(0)).u64(spool.dropped(1));
  int fds[wire::kSpoolFiles];
  uint64_t sizes[wire::kSpoolFiles];
  uint32_t count = 0;
  const auto add = [&](int fd, uint64_t size) {
    if (fd < 0) return;
    fds[count] = fd;
    sizes[count++] = size;
  };
  add(spool.head_fd, spool.head_size);
  for (unsigned stream = 0; stream < 2; ++stream) {
    const unsigned young = spool.streams[stream].half;
    add(spool.tail_fds[stream][young ^ 1], spool.streams[stream].half_used[young ^ 1]);
    add(spool.tail_fds[stream][young], spool.streams[stream].half_used[young]);
  }
  writer.u32(count);
  for (uint32_t i = 0; i < count; ++i) writer.u64(sizes[i]);
  const wire::FrameHeader header = {static_cast<uint32_t>(text.size), wire::Type::Attached, 0};
  const bool sent = send_with_descriptors(client.source.fd, header, text.data, text.size, fds, count);
  text.clear();
  if (!sent) return drop(client);
  client.command = command;
  client.owns_input = waits_for_input(*command);
  update_events(client);
}

void list(Client& client) {
  for (const Command* command = keeper.commands; command; command = command->next) {
    if (command->reported) continue;
    Buffer text = {};
    wire::Writer<Buffer> writer(text);
    writer.str(command->id, strlen(command->id)).u32(command->running).u32(command->argv.count);
    for (uint32_t i = 0; i < command->argv.count; ++i) {
      writer.str(command->argv.items[i], strlen(command->argv.items[i]));
    }
    writer.u32(command->session);
    send(client, wire::Type::Command, text.data, text.size);
    text.clear();
  }
  send(client, wire::Type::Done, nullptr, 0);
}

void resize(Command& command, uint16_t rows, uint16_t columns) {
  if (command.stream) return resize_machine_command(command, rows, columns);
  if (!command.tty || command.output.fd < 0) return;
  const winsize size = {rows, columns, 0, 0};
  sys(__NR_ioctl, command.output.fd, TIOCSWINSZ, &size);
}

}  // namespace

int signal_target(const Command& command, uint32_t number) {
  const bool to_itself = number == SIGTERM || number == SIGUSR1 || number == SIGUSR2;
  return to_itself ? command.pid : -command.pid;
}

namespace {

void signal(Command& command, uint32_t number) {
  if (!command.running) return;
  if (is_in_guest(command)) return signal_machine_command(command, number);
  if (command.session) return signal_session_command(command, number);
  // The group exists once the command has left our own session, which its exec implies.
  if (command.entry && number > 0) command.early_signals |= uint64_t{1} << (number - 1);
  if (!command.entry && command.pid) sys(__NR_kill, signal_target(command, number), number);
}

// The main one, or else everybody.
void stop_machine_commands() {
  bool found = false;
  for (Command* command = keeper.commands; command; command = command->next) {
    if (!command->main || !command->running) continue;
    found = true;
    signal_machine_command(*command, keeper.config.stop_signal);
  }
  for (Command* command = keeper.commands; command && !found; command = command->next)
    if (command->running) signal_machine_command(*command, keeper.config.stop_signal);
}

void stop(Client& client, uint64_t grace_ms) {
  client.waits_for_end = true;
  if (keeper.ending || keeper.stop_us) return;
  int target = 0;
  for (const Command* command = keeper.commands; command; command = command->next) {
    if (command->main && command->running) target = command->stream ? -1 : command->pid;
  }
  keeper.at_once = grace_ms == 0;
  if (grace_ms == 0 || (!target && !keeper.running_count && !keeper.lingering_count)) {
    begin_end("stopped", "it was stopped");
    return;
  }
  keeper.stop_us = monotonic_us() + grace_ms * 1000;
  if (keeper.config.is_machine()) return stop_machine_commands();
  // Without a main command PID 1 hands it to everybody.
  sys(__NR_kill, target ? target : keeper.init_pid, keeper.config.stop_signal);
}

void resume(Client& client) {
  Failure failure = {};
  if (!complete_sandbox(failure)) return send_failure(client, failure);
  send(client, wire::Type::Done, nullptr, 0);
}

bool is_kind(const OperationRequest& request, const char* kind) {
  return strlen(request.kind) == strlen(kind) && memcmp(request.kind, kind, strlen(kind)) == 0;
}

bool begin(Client& client, wire::Reader& reader) {
  OperationRequest request = {};
  request.op_id = reader.str();
  request.kind = reader.str().data;
  request.origin = reader.u32();
  request.request = reader.str();
  if (!reader.ok()) return false;
  if (const NamedOperation* const known = find_named(request.op_id)) {
    client.waits_for = known;
    if (known->done) tell_known(known);
    return true;
  }
  ClientOperation* const own = make<ClientOperation>();
  own->client = &client;
  own->stops = is_kind(request, "stop");
  own->types = is_kind(request, "screen-input");
  own->next = client.operations;
  client.operations = own;
  Failure failure = {};
  if (keeper.ending && own->stops) {
    // It needs no record to have what it wants.
    on_begun(own, 0);
    return true;
  }
  if (keeper.ending) {
    failure.set("begin an operation in a sandbox that is ending", "", 0);
  } else if (begin_operation(own->operation, request, failure)) {
    own->disk.owner = own;
    own->disk.ready = on_begun;
    if (own->operation.named) {
      await_disk(own->disk);
    } else {
      on_begun(own, 0);
    }
    return true;
  }
  forget(client, *own);
  send_failure(client, failure);
  return true;
}

bool end(Client& client, wire::Reader& reader) {
  const uint64_t sequence = reader.u64();
  const uint32_t flags = reader.u32();
  const Text members = reader.str();
  ClientOperation* own = client.operations;
  while (own && (own->operation.sequence != sequence || !own->open)) own = own->next;
  if (!reader.ok() || !own) return false;
  Buffer text = {};
  text.append(members.data, members.size);
  end_client_operation(*own, flags & wire::kEndFailed ? "failed" : "ok", text);
  text.clear();
  return true;
}

bool update(Client& client, wire::Reader& reader) {
  uint32_t flags = 0;
  if (!keeper.config.read_update(reader, client.fds, client.fd_count, flags)) return false;
  // Those of groups are the configuration's now.
  if (!(flags & wire::kUpdateGroups)) close_descriptors(client);
  client.fd_count = 0;
  if (flags & wire::kUpdateTimes) {
    keeper.end_us = keeper.config.lifetime_ms ? keeper.began_us + keeper.config.lifetime_ms * 1000 : 0;
    note_activity();
  }
  send(client, wire::Type::Done, nullptr, 0);
  return true;
}

// What runs already has its own, and what is being entered has the texts of before, which therefore stay.
bool set_environment(Client& client, const char* data, size_t size) {
  Buffer frame = {};
  frame.append(data, size);
  wire::Reader reader(frame.data, frame.size);
  Strings env = {};
  if (!env.read(reader)) return frame.clear(), false;
  keeper.config.env.clear();
  keeper.config.env = env;
  send(client, wire::Type::Done, nullptr, 0);
  return true;
}

// Every request but those that only look, or want it frozen.
bool wakes(wire::Type type) {
  switch (type) {
    case wire::Type::List:
    case wire::Type::SessionList:
    case wire::Type::Wait:
    case wire::Type::Pause:
    case wire::Type::Hold:
    case wire::Type::Update:
    case wire::Type::Machine:
    case wire::Type::Control:
    case wire::Type::Environment:
    // What they record may be a pause or a snapshot.
    case wire::Type::Begin:
    case wire::Type::End:
      return false;
    default:
      return true;
  }
}

bool handle_session(Client& client, wire::Type type, const char* data, size_t size) {
  wire::Reader reader(data, size);
  if (type == wire::Type::SessionOpen) {
    open_session(client, data, size);
    return true;
  }
  if (type == wire::Type::SessionList) {
    list_sessions(client);
    return true;
  }
  const Text id = reader.str();
  if (reader.ok()) close_session(client, id);
  return reader.ok();
}

// False when the frame makes no sense.
bool handle(Client& client, wire::Type type, const char* data, size_t size) {
  wire::Reader reader(data, size);
  Command* const command = client.command;
  if (wakes(type)) wake();
  if (wakes(type) || type == wire::Type::Begin) client.acts = true;
  switch (type) {
    case wire::Type::Exec: {
      Buffer frame = {};
      frame.append(data, size);
      client.command = nullptr;
      start_command(client, frame);
      return true;
    }
    case wire::Type::Attach: {
      const Text id = reader.str();
      if (reader.ok()) attach(client, id);
      return reader.ok();
    }
    case wire::Type::Stdin:
      if (command && client.owns_input) feed(*command, data, size);
      return true;
    case wire::Type::StdinEof:
      if (command && client.owns_input) end_input(*command);
      return true;
    case wire::Type::Resize: {
      const uint16_t rows = reader.u16(), columns = reader.u16();
      if (reader.ok() && command) resize(*command, rows, columns);
      return reader.ok();
    }
    case wire::Type::Signal: {
      const uint32_t number = reader.u32();
      if (!reader.ok() || number >= 65) return false;
      if (command) signal(*command, number);
      return true;
    }
    case wire::Type::SignalTo: {
      const Text id = reader.str();
      const uint32_t number = reader.u32();
      if (!reader.ok() || number >= 65) return false;
      if (Command* const named = find_command(id)) signal(*named, number);
      return true;
    }
    case wire::Type::Stop: {
      const uint64_t grace = reader.u64();
      if (reader.ok()) stop(client, grace);
      return reader.ok();
    }
    case wire::Type::List:
      list(client);
      return true;
    case wire::Type::Machine:
      begin_machine(client);
      return true;
    case wire::Type::Environment:
      return set_environment(client, data, size);
    case wire::Type::Quiesce:
      quiesce_machine(client, reader);
      return reader.ok();
    case wire::Type::Relay:
      relay(client, reader);
      return reader.ok();
    case wire::Type::Control:
      control_machine(client, reader);
      return reader.ok();
    case wire::Type::SessionOpen:
    case wire::Type::SessionList:
    case wire::Type::SessionClose:
      if (keeper.config.is_machine()) {
        ask_machine(client, type, data, size);
        return true;
      }
      return handle_session(client, type, data, size);
    case wire::Type::SessionRun:
      if (keeper.config.is_machine()) {
        run_in_machine_session(client, data, size);
        return true;
      }
      run_in_session(client, data, size);
      return true;
    case wire::Type::Wait:
      client.waits_for_end = true;
      return true;
    case wire::Type::Begin:
      return begin(client, reader);
    case wire::Type::End:
      return end(client, reader);
    case wire::Type::Pause:
      pause(client);
      return true;
    case wire::Type::Resume:
      resume(client);
      return true;
    case wire::Type::Hold:
      hold(client);
      return true;
    case wire::Type::Update:
      return update(client, reader);
    default:
      return false;
  }
}

void read_frames(Client& client) {
  // Frames are taken one by one and only while the command's input has room, so a fast writer waits in its own socket.
  while (!client.dead && client.in.size >= sizeof(wire::FrameHeader)) {
    wire::FrameHeader header;
    memcpy(&header, client.in.data, sizeof header);
    if (header.length > wire::kMaxFrame) return drop(client);
    if (client.in.size < sizeof header + header.length) return;
    if (!handle(client, header.type, client.in.data + sizeof header, header.length)) return drop(client);
    if (client.dead) return;
    client.in.consume(sizeof header + header.length);
  }
}

void receive(Client& client) {
  char chunk[8192];
  wire::FrameHeader header = {};
  if (client.in.size >= sizeof header) memcpy(&header, client.in.data, sizeof header);
  // A second lot before the first is asked for makes no sense.
  int fds[kMaxClientDescriptors];
  unsigned count = 0;
  const long got = receive_some(client.source.fd, chunk, sizeof chunk, fds, kMaxClientDescriptors, count);
  if (count) {
    close_descriptors(client);
    memcpy(client.fds, fds, count * sizeof(int));
    client.fd_count = count;
  }
  if (got == -EAGAIN || got == -EINTR) return;
  if (got <= 0) return drop(client);
  client.in.append(chunk, static_cast<size_t>(got));
  read_frames(client);
}

void flush(Client& client) {
  while (client.out.size) {
    const long sent = send_some(client.source.fd, client.out.data, client.out.size);
    if (sent == -EAGAIN) break;
    if (sent <= 0) return drop(client);
    client.out.consume(static_cast<size_t>(sent));
  }
}

}  // namespace

void accept_client() {
  const long fd = sys(__NR_accept4, keeper.listener.fd, nullptr, nullptr, O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  // The socket is 0600 in a directory that is 0700; this also holds where somebody has changed that.
  if (!peer_is_allowed(static_cast<int>(fd))) {
    close_fd(static_cast<int>(fd));
    return;
  }
  add_client(static_cast<int>(fd));
}

Client* add_client(int fd) {
  Client* const client = make<Client>();
  client->source = {SourceKind::Client, fd, 0, client};
  client->next = keeper.clients;
  keeper.clients = client;
  update_events(*client);
  return client;
}

void on_client(Client& client, uint32_t events) {
  if (!client.dead && events & EPOLLOUT) flush(client);
  if (!client.dead && events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) receive(client);
  if (!client.dead) update_events(client);
}

void send(Client& client, wire::Type type, const void* a, size_t a_size, const void* b, size_t b_size) {
  if (client.dead) return;
  const wire::FrameHeader header = {static_cast<uint32_t>(a_size + b_size), type, 0};
  const size_t total = sizeof header + a_size + b_size;
  size_t sent = 0;
  const iovec parts[] = {{const_cast<wire::FrameHeader*>(&header), sizeof header},
                         {const_cast<void*>(a), a_size},
                         {const_cast<void*>(b), b_size}};
  if (!client.out.size) {
    const long result = send_parts(client.source.fd, parts, 3);
    if (result < 0 && result != -EAGAIN) return drop(client);
    if (result > 0) sent = static_cast<size_t>(result);
  }
  if (sent == total) return;
  for (const iovec& part : parts) {
    if (sent >= part.iov_len) {
      sent -= part.iov_len;
      continue;
    }
    client.out.append(static_cast<const char*>(part.iov_base) + sent, part.iov_len - sent);
    sent = 0;
  }
  update_events(client);
}

void send_failure(Client& client, const Failure& failure) {
  Buffer text = {};
  wire::Writer<Buffer> writer(text);
  const char* const object = failure.object ? failure.object : "";
  writer.u32(static_cast<uint32_t>(failure.error)).str(failure.step, strlen(failure.step)).str(object, strlen(object));
  send(client, wire::Type::Failed, text.data, text.size);
  text.clear();
}

void send_result(Client& client, const Command& command) {
  const Result& result = command.result;
  Buffer text = {};
  wire::Writer<Buffer> writer(text);
  const char* const step = result.failure.step ? result.failure.step : "";
  const char* const object = result.failure.object ? result.failure.object : "";
  writer.u32(static_cast<uint32_t>(result.cause)).u32(result.exit_code).u32(result.signal).u64(result.duration_us);
  writer.u64(command.spool.streams[0].written).u64(command.spool.streams[1].written);
  writer.u64(command.spool.dropped(0)).u64(command.spool.dropped(1));
  writer.u32(static_cast<uint32_t>(result.failure.error)).str(step, strlen(step)).str(object, strlen(object));
  writer.u32(result.session_ended);
  writer.u64(result.oom_kills).u64(result.memory_limit).u64(result.memory_peak);
  send(client, wire::Type::Exited, text.data, text.size);
  text.clear();
}

bool has_backlog(const Command& command) {
  for (const Client* client = keeper.clients; client; client = client->next) {
    if (client->command == &command && client->out.size > kBacklog) return true;
  }
  return false;
}

bool has_open_operations() {
  for (const Client* client = keeper.clients; client; client = client->next) {
    if (client->operations) return true;
  }
  return false;
}

void end_stops() {
  Buffer none = {};
  for (Client* client = keeper.clients; client; client = client->next) {
    for (ClientOperation *own = client->operations, *next = nullptr; own; own = next) {
      next = own->next;
      if (own->open && (own->stops || (own->types && keeper.turned_off))) end_client_operation(*own, "ok", none);
    }
  }
}

void tell_known(const NamedOperation* named) {
  for (Client* client = keeper.clients; client; client = client->next) {
    if (client->waits_for != named) continue;
    client->waits_for = nullptr;
    send(*client, wire::Type::Known, nullptr, 0);
  }
}

void sweep_clients() {
  for (Client** at = &keeper.clients; *at;) {
    Client* const client = *at;
    // One that is gone stays until the ends of its operations are on the disk.
    if (!client->dead || client->operations) {
      at = &client->next;
      continue;
    }
    *at = client->next;
    client->in.clear();
    client->out.clear();
    destroy(client);
  }
}

}  // namespace dsec::guest
