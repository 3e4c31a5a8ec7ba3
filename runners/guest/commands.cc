#include <asm/ioctls.h>
#include <asm/signal.h>
#include <asm/termios.h>
#include <linux/eventpoll.h>

#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr uint32_t kMaxEnvironment = 8192;
constexpr uint64_t kGiveUp = 5'000'000;
constexpr size_t kChunk = 64u << 10;
char chunk[kChunk];

}  // namespace

int make_pipe(int* read_end, int* write_end) {
  int ends[2];
  const long made = sys(__NR_pipe2, ends, O_CLOEXEC);
  if (made < 0) return static_cast<int>(made);
  *read_end = ends[0];
  *write_end = ends[1];
  return 0;
}

void set_nonblocking(int fd) {
  const long flags = sys(__NR_fcntl, fd, F_GETFL, 0);
  sys(__NR_fcntl, fd, F_SETFL, flags | O_NONBLOCK);
}

void close_source(Source& source) {
  if (source.fd < 0) return;
  unwatch(source);
  close_fd(source.fd);
  source.fd = -1;
}

namespace {

bool same_name(const char* entry, const char* name, size_t size) {
  return memcmp(entry, name, size) == 0 && entry[size] == '=';
}

// Length up to '='; 0 when there is none.
size_t name_length(const char* entry) {
  const char* at = entry;
  while (*at && *at != '=') ++at;
  return *at ? static_cast<size_t>(at - entry) : 0;
}

const char* value_of(const Strings& env, const char* name) {
  const size_t size = strlen(name);
  for (uint32_t i = 0; i < env.count; ++i) {
    if (name_length(env.items[i]) == size && same_name(env.items[i], name, size)) return env.items[i] + size + 1;
  }
  return nullptr;
}

// The sandbox's environment, overlaid by the command's, and the defaults that neither gives.
void merge_env(Command& command, const Strings& own, const User& user) {
  const Strings& base = keeper.config.env;
  Strings& env = command.env;
  const size_t room = size_t{base.count} + own.count + 4;
  env.items = static_cast<char**>(allocate(room * sizeof(char*)));
  const auto put = [&](char* entry) {
    const size_t size = name_length(entry);
    if (!size) return;
    for (uint32_t i = 0; i < env.count; ++i) {
      if (same_name(env.items[i], entry, size)) {
        env.items[i] = entry;
        return;
      }
    }
    env.items[env.count++] = entry;
  };
  for (uint32_t i = 0; i < base.count; ++i) put(base.items[i]);
  for (uint32_t i = 0; i < own.count; ++i) put(own.items[i]);
  if (!value_of(env, "PATH")) {
    static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    put(path);
  }
  if (command.tty && !value_of(env, "TERM")) {
    static char term[] = "TERM=xterm";
    put(term);
  }
  if (!value_of(env, "HOME")) {
    command.env_text.append("HOME=");
    command.env_text.append(user.home, strlen(user.home) + 1);
    put(command.env_text.data);
  }
  env.items[env.count] = nullptr;
  // So that clear() gives back what was allocated.
  command.env_text.reserve(command.env_text.size + 1);
  env.count = static_cast<uint32_t>(room - 1);
}

// So that /dev/stdout and the like can be opened inside, where our own id does not exist.
void give(int fd, const User& user, uint32_t gid) {
  sys(__NR_fchown, fd, keeper.config.outside(user.uid), keeper.config.outside(gid));
}

}  // namespace

long open_terminal(const User& user, uint16_t rows, uint16_t columns, int& master, int& slave) {
  const long opened = open_in_root(keeper.config.root_fd, "/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK);
  if (opened < 0) return opened;
  master = static_cast<int>(opened);
  const int unlocked = 0;
  long done = sys(__NR_ioctl, master, TIOCSPTLCK, &unlocked);
  if (done < 0) return done;
  const winsize size = {rows, columns, 0, 0};
  sys(__NR_ioctl, master, TIOCSWINSZ, &size);
  done = sys(__NR_ioctl, master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (done < 0) return done;
  slave = static_cast<int>(done);
  constexpr uint32_t kTtyGroup = 5;
  give(slave, user, kTtyGroup);
  return 0;
}

namespace {

// The command's ends of its streams, in `entry`; ours in `command`. 0 or a negative errno.
long open_streams(Command& command, Entry& entry, uint16_t rows, uint16_t columns) {
  const User& user = entry.user;
  if (command.tty) {
    const long done = open_terminal(user, rows, columns, command.output.fd, entry.input);
    if (done < 0) return done;
    entry.output = entry.error = entry.input;
    const long copy = sys(__NR_fcntl, command.output.fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return copy;
    command.input.fd = static_cast<int>(copy);
    return 0;
  }
  long done = make_pipe(&command.output.fd, &entry.output);
  if (done == 0) done = make_pipe(&command.error.fd, &entry.error);
  if (done < 0) return done;
  give(entry.output, user, user.gid);
  give(entry.error, user, user.gid);
  set_nonblocking(command.output.fd);
  set_nonblocking(command.error.fd);
  if (command.has_stdin) {
    done = make_pipe(&entry.input, &command.input.fd);
    if (done < 0) return done;
    give(entry.input, user, user.gid);
    set_nonblocking(command.input.fd);
    return 0;
  }
  done = open_in_root(keeper.config.root_fd, "/dev/null", O_RDONLY);
  if (done >= 0) entry.input = static_cast<int>(done);
  return done < 0 ? done : 0;
}

// In our table only: the command has had its own since it was cloned, and still goes by the numbers in `entry`.
void close_child_ends(const Entry& entry) {
  if (entry.input >= 0) close_fd(entry.input);
  if (entry.output >= 0 && entry.output != entry.input) close_fd(entry.output);
  if (entry.error >= 0 && entry.error != entry.output) close_fd(entry.error);
  if (entry.control >= 0) close_fd(entry.control);
}

void put_back(Entry* entry) {
  if (!keeper.spare_entry) {
    keeper.spare_entry = entry;
  } else {
    destroy(entry);
  }
}

Entry* take_entry() {
  Entry* const entry = keeper.spare_entry ? keeper.spare_entry : make<Entry>();
  keeper.spare_entry = nullptr;
  // Not the stack: clearing it would touch pages that most commands never need.
  memset(static_cast<void*>(entry), 0, offsetof(Entry, stack));
  return entry;
}

// Who writes to the command rests while its input is full.
void wake_writers(const Command& command) {
  for (Client* client = keeper.clients; client; client = client->next) {
    if (client->command == &command) on_client(*client, 0);
  }
}

// Nobody will read what is still waiting: who writes it must not wait either.
void drop_input(Command& command) {
  command.pending_input.clear();
  close_source(command.input);
  wake_writers(command);
}

bool refused_by_sandbox(const Failure& failure) {
  // What the caller asked for cannot be run; everything else is ours.
  static constexpr const char* kSteps[] = {"execute", "enter the working directory", "find user", "find the group of",
                                           "become user"};
  for (const char* step : kSteps) {
    if (strlen(step) == strlen(failure.step) && memcmp(step, failure.step, strlen(step)) == 0) return true;
  }
  return false;
}

// Whether its cgroup is empty, which it then is for good.
bool remove_cgroup(const Command& command) {
  char name[16] = "x";
  write_number(name + 1, command.number);
  const long done = sys(__NR_unlinkat, keeper.config.cgroup_fd, name, 0x200 /* AT_REMOVEDIR */);
  return done == 0 || done == -ENOENT;
}

// What the command left running may stay in it.
void leave_cgroup(Command& command) {
  if (command.cgroup < 0) return;
  close_fd(command.cgroup);
  command.cgroup = -1;
  if (!remove_cgroup(command)) linger({0, command.number});
}

void append_record(Buffer& text, const Command& command) {
  text.append("{");
  append_text_json(text, "exec_id", command.id, strlen(command.id));
  text.append(",\"argv\":[");
  for (uint32_t i = 0; i < command.argv.count; ++i) {
    text.append(i ? ",\"" : "\"");
    text.append_json(command.argv.items[i], strlen(command.argv.items[i]));
    text.append("\"");
  }
  text.append("]");
  if (command.session) {
    text.append(",\"session\":\"");
    text.append_number(command.session);
    text.append("\"");
  }
  if (command.reported) append_result_json(text, command);
  text.append("}");
}

void log_command(const Command& command) {
  Buffer text = {};
  append_record(text, command);
  text.append("\n");
  if (keeper.commands_log < 0) {
    keeper.commands_log = static_cast<int>(
        open_at(keeper.directory, "commands.jsonl", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  }
  write_fd(keeper.commands_log, text.data, text.size);
  text.clear();
}

void report(Command& command) {
  command.reported = true;
  if (command.operation.named) {
    command.operation.named->done = true;
    tell_known(command.operation.named);
  }
  for (Client* client = keeper.clients; client; client = client->next) {
    if (client->command != &command) continue;
    if (command.main && client->started && !command.detached) keeper.attended = true;
    send_result(*client, command);
    client->command = nullptr;
  }
  if (keeper.config.output_limit != wire::kNoSpool) log_command(command);
  note_activity();
  if (command.main) {
    record_main(command);
    begin_end("stopped", keeper.stop_us ? "it was stopped" : "its command ended");
  }
}

// The caller relies on the record: without it there is no result.
void lose_record(Command& command, const Failure& failure) {
  command.result = {};
  command.result.cause = wire::Cause::Lost;
  command.result.failure = failure;
}

void on_end_recorded(void* owner, long error) {
  Command& command = *static_cast<Command*>(owner);
  Failure failure = {};
  failure.set("flush the record of the result", "", error);
  if (error) lose_record(command, failure);
  report(command);
}

void record_end(Command& command) {
  Failure& failure = command.result.failure;
  if (failure.failed()) {
    // It may point into the entry, which is used again before the result is told.
    command.failure_object.append(failure.object, strlen(failure.object) + 1);
    failure.object = command.failure_object.data;
  }
  Buffer members = {};
  if (command.operation.sequence) append_command_record(members, command);
  Failure unwritten = {};
  const bool written = end_operation(command.operation, "ok", members, unwritten);
  members.clear();
  if (!written) lose_record(command, unwritten);
  if (!written || !command.operation.named) return report(command);
  command.end_disk.owner = &command;
  command.end_disk.ready = on_end_recorded;
  await_disk(command.end_disk);
}

void fail_command(Command& command, const Failure& failure, bool not_found) {
  command.result.failure = failure;
  command.result.cause = not_found                     ? wire::Cause::NotFound
                         : refused_by_sandbox(failure) ? wire::Cause::CannotExecute
                                                       : wire::Cause::Lost;
  end_command(command);
}

// An open session keeps no sandbox busy; a command in it does.
void note_end(Command& command) {
  if (command.running && !command.shell_of && !command.console) --keeper.running_count;
  command.running = false;
}

}  // namespace

void record_main(const Command& command) {
  keeper.main_record.size = 0;
  append_record(keeper.main_record, command);
}

void linger(Lingering what) {
  if (keeper.lingering_count == keeper.lingering_room) {
    const uint32_t bigger = keeper.lingering_room ? keeper.lingering_room * 2 : 16;
    Lingering* const moved = static_cast<Lingering*>(allocate(bigger * sizeof(Lingering)));
    memcpy(moved, keeper.lingering, keeper.lingering_count * sizeof(Lingering));
    release(keeper.lingering, keeper.lingering_room * sizeof(Lingering));
    keeper.lingering = moved;
    keeper.lingering_room = bigger;
  }
  keeper.lingering[keeper.lingering_count++] = what;
}

void end_command(Command& command) {
  note_end(command);
  if (command.ended) return;
  command.ended = true;
  if (command.shell_of) end_session(command);
  if (command.session) leave_session(command);
  command.result.duration_us = monotonic_us() - command.start_us;
  note_memory(command);
  drop_input(command);
  if (!command.tty) {
    on_output(command, 1);
  }
  on_output(command, 0);
  leave_cgroup(command);
  record_end(command);
}

void note_memory(Command& command) {
  const uint64_t kills = oom_kills();
  if (kills <= command.oom_kills) return;
  command.result.oom_kills = kills - command.oom_kills;
  read_memory(command.result.memory_limit, command.result.memory_peak);
}

void append_result_json(Buffer& out, const Command& command) {
  static constexpr const char* kCauses[] = {"exited",         "signalled", "timed_out", "out_of_memory",
                                            "cannot_execute", "not_found", "lost"};
  const Result& result = command.result;
  const auto number = [&](const char* key, uint64_t value) {
    out.append(",\"");
    out.append(key);
    out.append("\":");
    out.append_number(static_cast<int64_t>(value));
  };
  out.append(",\"result\":{\"cause\":\"");
  out.append(kCauses[static_cast<unsigned>(result.cause)]);
  out.append("\"");
  number("exit_code", result.exit_code);
  number("signal", result.signal);
  number("duration_us", result.duration_us);
  number("stdout_bytes", command.spool.streams[0].written);
  number("stderr_bytes", command.spool.streams[1].written);
  number("stdout_dropped", command.spool.dropped(0));
  number("stderr_dropped", command.spool.dropped(1));
  if (result.session_ended) out.append(",\"session_ended\":true");
  if (result.oom_kills) {
    number("oom_kills", result.oom_kills);
    number("memory_limit", result.memory_limit);
    number("memory_peak", result.memory_peak);
  }
  if (result.failure.failed()) {
    number("errno", static_cast<uint64_t>(result.failure.error));
    out.append(",");
    append_text_json(out, "step", result.failure.step, strlen(result.failure.step));
    out.append(",");
    append_text_json(out, "object", result.failure.object, strlen(result.failure.object));
  }
  out.append("}");
}

void tell_start(Command& command) {
  for (Client* client = keeper.clients; client; client = client->next) {
    if (client->command != &command || !client->awaits_start) continue;
    client->awaits_start = false;
    send(*client, wire::Type::ExecStarted, command.id, strlen(command.id));
  }
}

namespace {

void refuse_command(Client& client, Command* command, Strings& env, const Failure& failure) {
  command->frame.clear();
  command->argv.clear();
  env.clear();
  destroy(command);
  if (failure.failed()) return send_failure(client, failure);
  send(client, wire::Type::Known, nullptr, 0);
}

void enter_command(Command& command) {
  if (keeper.config.is_machine()) return enter_machine_command(command);
  Entry* const entry = command.entry;
  command.starting = false;
  command.start_us = monotonic_us();
  command.deadline_us = command.timeout_ms ? command.start_us + command.timeout_ms * 1000 : 0;
  const bool begun = begin_entry(*entry);
  // While it is on its way, and before anybody hears of it and relies on that.
  if (command.main) write_state();
  tell_start(command);
  close_child_ends(*entry);
  if (!begun) {
    command.entry = nullptr;
    // The names in it may point into the entry.
    fail_command(command, entry->failure, false);
    put_back(entry);
    return;
  }
  watch(command.output, EPOLLIN);
  if (command.error.fd >= 0) watch(command.error, EPOLLIN);
}

void give_up_entering(Command& command, const Failure& failure) {
  Entry* const entry = command.entry;
  command.starting = false;
  if (!entry) return fail_command(command, failure, false);
  close_child_ends(*entry);
  command.entry = nullptr;
  fail_command(command, failure, false);
  put_back(entry);
}

void on_start_recorded(void* owner, long error) {
  Command& command = *static_cast<Command*>(owner);
  // Its sandbox has ended in the meantime.
  if (command.ended) return;
  if (!error) return enter_command(command);
  Failure failure = {};
  failure.set("flush the record of the operation", "", error);
  give_up_entering(command, failure);
}

}  // namespace

void begin_when_recorded(Command& command) {
  if (!command.operation.named) return enter_command(command);
  command.starting = true;
  command.start_disk.owner = &command;
  command.start_disk.ready = on_start_recorded;
  await_disk(command.start_disk);
}

Command* make_command() {
  Command* const command = make<Command>();
  command->cgroup = command->given_fd = -1;
  command->output = {SourceKind::Output, -1, 0, command};
  command->error = {SourceKind::Error, -1, 0, command};
  command->input = {SourceKind::Input, -1, 0, command};
  return command;
}

void add_command(Command& command, uint64_t output_limit) {
  command.number = ++keeper.command_count;
  write_number(command.id, command.number);
  const bool wished = output_limit && keeper.config.output_limit != wire::kNoSpool;
  command.spool.begin(keeper.spool_directory, command.id, wished ? output_limit : keeper.config.output_limit);
  command.start_us = monotonic_us();
  command.oom_kills = oom_kills();
  command.running = true;
  command.next = keeper.commands;
  keeper.commands = &command;
}

void start_command(Client& client, Buffer frame, Session* shell_of) {
  Command* const command = make_command();
  command->frame = frame;
  wire::Reader reader(frame.data, frame.size);
  const uint32_t flags = reader.u32();
  const uint16_t rows = reader.u16(), columns = reader.u16();
  command->timeout_ms = reader.u64();
  const uint64_t output_limit = reader.u64();
  const Text user = reader.str(), workdir = reader.str();
  Strings own = {};
  const bool read = command->argv.read(reader) && own.read(reader);
  command->asked_size = static_cast<size_t>(reader.rest() - frame.data);
  OperationRequest request = {{"", 0}, "exec", 0, command->id, {"{}", 2}};
  if (reader.left()) {
    request.op_id = reader.str();
    request.origin = reader.u32();
    request.request = reader.str();
  }
  const bool understood = read && reader.ok() && command->argv.count > 0;
  // Merging compares each with each.
  const bool too_many = own.count > kMaxEnvironment;
  Failure failure = {};
  if (!understood || too_many) {
    failure.set("read the request", "", too_many ? -E2BIG : -EPROTO);
    return refuse_command(client, command, own, failure);
  }
  if (find_named(request.op_id)) return refuse_command(client, command, own, failure);
  if (keeper.ending) {
    failure.set("execute in a sandbox that is ending", "", 0);
    return refuse_command(client, command, own, failure);
  }
  write_number(command->id, keeper.command_count + 1);
  // What is done in a session is recorded by itself.
  if (!shell_of && !begin_operation(command->operation, request, failure))
    return refuse_command(client, command, own, failure);
  add_command(*command, output_limit);
  command->shell_of = shell_of;
  command->tty = flags & wire::kExecTty;
  command->main = flags & wire::kExecMain;
  command->detached = flags & wire::kExecDetach;
  command->tied = flags & wire::kExecTied && !shell_of;
  command->has_stdin = command->tty || flags & wire::kExecStdin;
  if (!shell_of) {
    ++keeper.running_count;
    client.command = command;
    client.owns_input = command->has_stdin;
    client.started = client.awaits_start = true;
  }
  if (keeper.config.is_machine()) {
    own.clear();
    if (command->main) record_main(*command);
    return begin_when_recorded(*command);
  }

  Entry* const entry = take_entry();
  command->entry = entry;
  entry->config = &keeper.config;
  entry->init_pidfd = keeper.init_pidfd;
  entry->input = entry->output = entry->error = entry->place = entry->control = entry->terminal = -1;
  entry->tty = command->tty;
  // The sandbox's own is made when the image lacks it, as images expect; one that a caller names must be there.
  entry->make_workdir = workdir.size == 0;
  entry->argv = command->argv.items;
  entry->workdir = workdir.size ? workdir.data : keeper.config.workdir.size ? keeper.config.workdir.data : "/";
  const char* const wanted_user = user.size ? user.data : keeper.config.user.data;

  if (command->main) record_main(*command);
  if (complete_sandbox(failure) && find_user(keeper.config.root_fd, wanted_user, entry->user, failure)) {
    merge_env(*command, own, entry->user);
    entry->env = command->env.items;
    entry->path = value_of(command->env, "PATH");
    long opened = open_streams(*command, *entry, rows, columns);
    if (opened >= 0 && shell_of) opened = prepare_shell(*command, *entry, rows, columns);
    if (opened < 0) failure.set("open the streams", "", opened);
  }
  own.clear();
  if (!failure.failed()) {
    char name[16] = "x";
    write_number(name + 1, command->number);
    long done = sys(__NR_mkdirat, keeper.config.cgroup_fd, name, 0755);
    if (done >= 0) done = open_at(keeper.config.cgroup_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (done < 0) {
      failure.set("make the cgroup of", "the command", done);
    } else {
      command->cgroup = entry->cgroup = static_cast<int>(done);
    }
  }
  if (failure.failed()) {
    if (!shell_of) send(client, wire::Type::ExecStarted, command->id, strlen(command->id));
    client.awaits_start = false;
    return give_up_entering(*command, failure);
  }
  begin_when_recorded(*command);
}

void feed(Command& command, const char* data, size_t size) {
  const bool machine = is_in_guest(command);
  if ((!machine && command.input.fd < 0) || command.input_ends) return;
  note_input(command, data, size);
  if (machine) return feed_machine_command(command, data, size);
  if (!command.pending_input.size) {
    const long wrote = write_fd(command.input.fd, data, size);
    if (wrote < 0 && wrote != -EAGAIN) return close_source(command.input);
    if (wrote > 0) {
      data += wrote;
      size -= static_cast<size_t>(wrote);
    }
  }
  if (!size) return;
  command.pending_input.append(data, size);
  watch(command.input, EPOLLOUT);
}

void end_input(Command& command) {
  if (is_in_guest(command)) return end_machine_input(command);
  if (command.tty) {
    // What ^D does at a terminal.
    const char end = 4;
    return feed(command, &end, 1);
  }
  command.input_ends = true;
  if (!command.pending_input.size) close_source(command.input);
}

void on_input_room(Command& command) {
  while (command.pending_input.size) {
    const long wrote = write_fd(command.input.fd, command.pending_input.data, command.pending_input.size);
    if (wrote == -EAGAIN) return;
    if (wrote < 0) return drop_input(command);
    command.pending_input.consume(static_cast<size_t>(wrote));
  }
  unwatch(command.input);
  if (command.input_ends) close_source(command.input);
  wake_writers(command);
}

void kill_command(Command& command) {
  if (command.cgroup >= 0) {
    const long fd = open_at(command.cgroup, "cgroup.kill", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
      const long killed = write_fd(static_cast<int>(fd), "1", 1);
      close_fd(static_cast<int>(fd));
      if (killed == 1) return;
    }
  }
  // Before Linux 5.14. Its own pid is ours to reap, so it cannot be another's by now.
  const int pid = command.entry ? command.entry->pid : command.pid;
  if (pid > 0) {
    sys(__NR_kill, -pid, SIGKILL);
    sys(__NR_kill, pid, SIGKILL);
  }
}

void deliver(Command& command, unsigned stream, const char* data, size_t size) {
  const uint64_t time = wall_time_us();
  command.spool.append(stream, time, data, size);
  for (Client* client = keeper.clients; client; client = client->next) {
    if (client->command != &command) continue;
    send(*client, stream ? wire::Type::Stderr : wire::Type::Stdout, &time, sizeof time, data, size);
  }
}

namespace {

// In a guest each piece has to go through its agent, the channel and the VMM: of a writer that goes on and on the next
// one is read when more of it has come. A pipe takes 64 KiB in the meantime.
bool is_to_gather(Command& command) {
  constexpr uint64_t kGather = 2000;
  if (keeper.config.output_limit != wire::kNoSpool || !command.running || command.ended) return false;
  const uint64_t now = monotonic_us();
  const bool goes_on = now - command.read_us < 3 * kGather;
  command.read_us = now;
  if (goes_on) command.gather_us = now + kGather;
  return goes_on;
}

}  // namespace

void on_output(Command& command, unsigned stream) {
  // Never without end: whoever writes as fast as we read would keep everybody else waiting. What has ended is read out
  // up to the largest pipe that it can have made (1 MiB).
  Source& source = stream ? command.error : command.output;
  for (int rounds = command.running ? 4 : 17; rounds > 0 && source.fd >= 0; --rounds) {
    // A slow reader slows its own command down, and no other. What has ended is only read out.
    if (command.running && has_backlog(command)) {
      unwatch(source);
      return;
    }
    const long got = read_fd(source.fd, chunk, sizeof chunk);
    if (got == -EINTR) continue;
    if (got == -EAGAIN) break;
    if (got <= 0) {  // a terminal says EIO when its last user is gone
      close_source(source);
      break;
    }
    const size_t size = static_cast<size_t>(got);
    if (command.session && command.tty) {
      if (take_from_terminal(command, chunk, size)) return;
    } else {
      deliver(command.shell_of && !stream ? hearer_of(command) : command, stream, chunk, size);
    }
    if (size < sizeof chunk && command.running) {
      if (!is_to_gather(command)) break;
      return unwatch(source);
    }
  }
  if (source.fd >= 0) watch(source, EPOLLIN);
}

bool reap(int pid, int status) {
  for (Command* command = keeper.commands; command; command = command->next) {
    Entry* const entry = command->entry;
    if (pid != (entry ? entry->pid : command->pid) || pid <= 0) continue;
    if (entry) {
      command->entry = nullptr;
      if (entry->failure.failed() && !command->ended) fail_command(*command, entry->failure, entry->not_found);
      put_back(entry);
    }
    command->pid = 0;
    if (command->ended) return true;
    Result& result = command->result;
    const int signal = status & 0x7f;
    if (signal == 0) {
      result.cause = wire::Cause::Exited;
      result.exit_code = static_cast<uint32_t>(status >> 8 & 0xff);
    } else {
      result.cause =
          signal == SIGKILL && oom_kills() > command->oom_kills ? wire::Cause::OutOfMemory : wire::Cause::Signalled;
      result.signal = static_cast<uint32_t>(signal);
    }
    if (command->timed_out) result.cause = wire::Cause::TimedOut;
    if (command->shell_of && !keeper.ending) {
      // All of a session goes with its shell.
      kill_command(*command);
      remove_lingering();
      command->give_up_us = monotonic_us() + kGiveUp;
    }
    const bool whole_tree = command->timed_out || command->shell_of;
    command->emptying = whole_tree && !keeper.ending && !remove_cgroup(*command);
    if (command->emptying) {
      command->deadline_us = monotonic_us() + 1000;
    } else {
      end_command(*command);
    }
    return true;
  }
  return false;
}

// One that has ended is left to reap().
void note_entered() {
  for (Command* command = keeper.commands; command; command = command->next) {
    Entry* const entry = command->entry;
    if (!entry || command->starting || is_on_its_way(*entry) || entry->failure.failed()) continue;
    command->entry = nullptr;
    command->pid = entry->pid;
    put_back(entry);
    for (int signal = 1; signal <= 64; ++signal)
      if (command->early_signals >> (signal - 1) & 1)
        sys(__NR_kill, signal_target(*command, static_cast<uint32_t>(signal)), signal);
  }
}

uint64_t next_look(uint64_t now) {
  for (const Command* command = keeper.commands; command; command = command->next)
    if (command->entry && command->early_signals) return now + 1000;
  return 0;
}

void check_timeouts(uint64_t now) {
  for (Command* command = keeper.commands; command; command = command->next) {
    if (command->ended || !command->deadline_us || now < command->deadline_us) continue;
    if (keeper.config.is_machine()) {
      check_machine_timeout(*command, now);
      continue;
    }
    if (command->session) {
      check_session_timeout(*command, now);
      continue;
    }
    if (!command->timed_out && !command->shell_of) {
      command->timed_out = true;
      command->give_up_us = now + kGiveUp;
    }
    // What is traced from inside stays with its tracer when it is dead, and nobody has to wait for that.
    if (command->shell_of) remove_lingering();
    const bool gone = command->emptying && remove_cgroup(*command);
    if (gone || now >= command->give_up_us) {
      if (command->timed_out) command->result.cause = wire::Cause::TimedOut;
      if (!command->emptying) command->result.signal = SIGKILL;
      end_command(*command);
      continue;
    }
    // Again while it has not ended: what was being cloned into the group at that moment may have escaped.
    kill_command(*command);
    command->deadline_us = now + (command->emptying ? 2'000 : 100'000);
  }
}

void finish_commands() {
  for (Command* command = keeper.commands; command; command = command->next) {
    if (command->starting) {
      Failure failure = {};
      failure.set("execute in a sandbox that is ending", "", 0);
      give_up_entering(*command, failure);
    } else if (!command->ended) {
      command->result.cause = wire::Cause::Signalled;
      command->result.signal = SIGKILL;
      end_command(*command);
    } else {
      on_output(*command, 0);
      on_output(*command, 1);
    }
    close_source(command->output);
    close_source(command->error);
  }
}

void sweep_commands() {
  for (Command** at = &keeper.commands; *at;) {
    Command* const command = *at;
    bool wanted = !command->reported || command->entry || command->output.fd >= 0 || command->error.fd >= 0;
    for (Client* client = keeper.clients; client && !wanted; client = client->next) wanted = client->command == command;
    if (wanted) {
      at = &command->next;
      continue;
    }
    *at = command->next;
    leave_stream(*command);
    command->guest_id.clear();
    command->guest_step.clear();
    command->spool.close();
    command->frame.clear();
    command->argv.clear();
    if (command->env.items) command->env.clear();
    command->env_text.clear();
    command->pending_input.clear();
    command->failure_object.clear();
    command->given.clear();
    if (command->given_fd >= 0) close_fd(command->given_fd);
    destroy(command);
  }
}

void remove_lingering() {
  for (uint32_t i = 0; i < keeper.lingering_count;) {
    const Lingering& what = keeper.lingering[i];
    char name[32] = "x";
    write_number(name + 1, what.session ? what.session : what.number);
    if (what.session) {
      char* const end = name + strlen(name);
      memcpy(end, "/x", 2);
      write_number(end + 2, what.number);
    }
    const long done = sys(__NR_unlinkat, keeper.config.cgroup_fd, name, 0x200);
    if (done == 0 || done == -ENOENT) {
      keeper.lingering[i] = keeper.lingering[--keeper.lingering_count];
    } else {
      ++i;
    }
  }
}

}  // namespace dsec::guest
