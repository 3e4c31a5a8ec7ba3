#include <asm/ioctls.h>
#include <asm/signal.h>
#include <asm/termios.h>
#include <linux/eventpoll.h>
#include <linux/mount.h>
#include <linux/stat.h>

#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

// A session is a shell that reads its script from a pipe of ours, its standard input. It has two descriptors more:
//   8  a directory that only they reach: a tmpfs of the session's own, mounted nowhere
//   9  a pipe on which it reports
// For each command we put its text and FIFOs for its streams into the directory and send one line, which opens them,
// closes 8, 9 and the script for the command, and reads the text as `.` does, in the shell itself. That the streams
// are the command's own keeps the output of what it leaves running apart from the next one's. Once the line reports
// that it has begun a second one is sent, which tells the exit code with a number that nobody could know before; it
// waits in the pipe until the shell comes back to its script, in whatever way. The shell is interactive, since only
// then SIGINT brings it back out of a loop, and neither a syntax error nor an unset variable ends it.
//
// What differs: bash reads its script byte by byte, and SIGINT makes it forget the line that it is reading. dash and
// busybox read blocks, of which SIGINT makes them forget the rest; and the interactive busybox takes a signal that
// comes while it reads standard input for the end of that, but not while it reads a file with `.`. So those read the
// same pipe by a path, and after SIGINT, which ends all reading but that of standard input, are told to again.

namespace dsec::guest {

constexpr unsigned kRemembered = 64;

struct Session {
  Session* next;
  uint32_t number;  ///< of its shell
  uint32_t commands, last_status;
  Buffer name;
  Command *shell, *running;
  Source control;
  int directory;
  int master, slave;  ///< of its terminal; -1: none
  int held_input;     ///< keeps the running command's input open until the shell has opened it, too; -1: none
  uint32_t uid, gid;  ///< host ids of its user
  bool tty, ready, draining;
  bool interrupted;       ///< since it was last asked
  bool killed;            ///< processes of the running command, on a caller's wish
  uint64_t opened_us;     ///< since the epoch
  uint64_t ask_again_us;  ///< monotonic; 0: it was not interrupted
  uint64_t patience_us;
  int signalled[kRemembered];  ///< members when it was interrupted; negative: that had not begun their program yet
  unsigned signalled_count;
  uint32_t asked;  ///< how often the shell was asked for the end of the running command
  int status;      ///< of the running command, as first told; -1: not yet
  char nonce[33];
  Buffer line;  ///< beginning of a report
  Buffer tail;  ///< what came from the terminal since the command's end
};

namespace {

constexpr size_t kLongestReport = 128;
constexpr unsigned kBatch = 256;

void close_if_open(int& fd) {
  if (fd >= 0) close_fd(fd);
  fd = -1;
}

bool equals(const char* data, size_t size, const Text& text) {
  return size == text.size && memcmp(data, text.data, size) == 0;
}

Session* find_session(const Text& id) {
  for (Session* session = keeper.sessions; session; session = session->next) {
    char number[12];
    write_number(number, session->number);
    if (equals(number, strlen(number), id) || (id.size && equals(session->name.data, session->name.size, id))) {
      return session;
    }
  }
  return nullptr;
}

Session* session_of(const Command& command) {
  Session* session = keeper.sessions;
  while (session && session->number != command.session) session = session->next;
  return session;
}

void refuse(Client& client, const char* step, const char* object, long result) {
  Failure failure = {};
  failure.set(step, object, result);
  send_failure(client, failure);
}

void append(Buffer& text, uint32_t number) { text.append_number(number); }

void send_session(Client& client, const Session& session) {
  Buffer text = {};
  wire::Writer<Buffer> writer(text);
  char id[12];
  write_number(id, session.number);
  const char* const running = session.running ? session.running->id : "";
  writer.str(id, strlen(id)).str(session.name.data ? session.name.data : "", session.name.size);
  writer.u32(session.tty).u64(session.opened_us).u32(session.commands).str(running, strlen(running));
  const Strings& argv = session.shell->argv;
  writer.u32(argv.count);
  for (uint32_t i = 0; i < argv.count; ++i) writer.str(argv.items[i], strlen(argv.items[i]));
  send(client, wire::Type::Session, text.data, text.size);
  text.clear();
}

// A filesystem that is there for who has its descriptor, and goes with the last one. A directory of ours: what runs
// inside may search it, and make nothing in it.
long open_private_place() {
  const long context = sys(__NR_fsopen, "tmpfs", FSOPEN_CLOEXEC);
  if (context < 0) return context;
  static constexpr const char* kOptions[][2] = {{"mode", "0711"}, {"size", "8m"}, {"nr_inodes", "64"}};
  long done = 0;
  for (const auto& [key, value] : kOptions)
    if (done >= 0) done = sys(__NR_fsconfig, context, FSCONFIG_SET_STRING, key, value, 0);
  if (done >= 0) done = sys(__NR_fsconfig, context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0);
  if (done >= 0) {
    done = sys(__NR_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  }
  close_fd(static_cast<int>(context));
  return done;
}

long make_fifo(const Session& session, const char* name) {
  sys(__NR_unlinkat, session.directory, name, 0);
  const long made = sys(__NR_mknodat, session.directory, name, S_IFIFO | 0600, 0);
  return made < 0 ? made : sys(__NR_fchownat, session.directory, name, session.uid, session.gid, 0x100);
}

// Our reading end of a FIFO that the shell will write to.
long open_output(const Session& session, const char* name, int& fd) {
  const long made = make_fifo(session, name);
  if (made < 0) return made;
  const long opened = open_at(session.directory, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  fd = static_cast<int>(opened);
  return opened;
}

// Opening the one end of a FIFO waits for the other: who has both waits for nobody.
long open_input(Session& session, int& fd) {
  const long made = make_fifo(session, "in");
  if (made < 0) return made;
  const long held = open_at(session.directory, "in", O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (held < 0) return held;
  session.held_input = static_cast<int>(held);
  const long opened = open_at(session.directory, "in", O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  fd = static_cast<int>(opened);
  return opened;
}

long write_text(const Session& session, const Text& text) {
  sys(__NR_unlinkat, session.directory, "text", 0);
  const long fd = open_at(session.directory, "text", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return fd;
  Buffer content = {};
  // In the text's own first line, so that its lines have the numbers that its author knows.
  content.append("exec 8<&-; ");
  if (session.last_status) {
    content.append("(exit ");
    append(content, session.last_status);
    content.append("); ");
  }
  content.append(text.data, text.size);
  long done = sys(__NR_fchown, fd, session.uid, session.gid);
  for (size_t at = 0; done >= 0 && at < content.size; at += static_cast<size_t>(done)) {
    done = write_fd(static_cast<int>(fd), content.data + at, content.size - at);
  }
  content.clear();
  close_fd(static_cast<int>(fd));
  return done;
}

// Whoever is not bash goes on by reading its script as a file.
constexpr char kReadOn[] = "\n[ \"$BASH_VERSION\" ] || . /dev/fd/0";

void send_line(Session& session, Buffer& line) {
  line.append("\n");
  feed(*session.shell, line.data, line.size);
  line.clear();
}

// `command` and the backslash pass by functions and aliases of that name.
void send_command_line(Session& session, uint32_t number, bool has_input) {
  Buffer line = {};
  line.append("{ \\command echo s");
  append(line, number);
  // 8 becomes the text last: the other paths go through what it was.
  line.append(" >&9; { . /dev/fd/8; }");
  if (!session.tty) line.append(" 2>/dev/fd/8/err");
  line.append(" 8</dev/fd/8/text 9>&-");
  if (session.tty) {
    uint32_t terminal = 0;
    sys(__NR_ioctl, session.master, TIOCGPTN, &terminal);
    line.append("; } <>/dev/pts/");
    append(line, terminal);
    line.append(" >&0 2>&0");
  } else {
    line.append("; } >/dev/fd/8/out </dev/");
    line.append(has_input ? "fd/8/in" : "null");
  }
  send_line(session, line);
}

// Begins with an empty line: what a signal has left of the line before must not be taken for its beginning.
enum class Then { Nothing, ReadOn };
void ask_for_end(Session& session, Then then = Then::Nothing) {
  Buffer line = {};
  line.append("\n{ \\command echo e");
  line.append(session.nonce, sizeof session.nonce - 1);
  line.append(" ");
  append(line, ++session.asked);
  line.append(" $? >&9 || exit 125; }");
  if (then == Then::ReadOn) line.append(kReadOn);
  send_line(session, line);
}

void make_nonce(Session& session) {
  uint8_t bytes[16] = {};
  sys(__NR_getrandom, bytes, sizeof bytes, 0);
  for (unsigned i = 0; i < sizeof bytes; ++i) {
    session.nonce[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
    session.nonce[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
  }
}

// Pids in the session's own cgroup but its shell: what the running command has started. Those of earlier ones have
// cgroups of their own. Stops at `room`.
unsigned read_members(const Session& session, int* pids, unsigned room) {
  if (session.shell->cgroup < 0) return 0;
  const long fd = open_at(session.shell->cgroup, "cgroup.procs", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[4096];
  unsigned count = 0;
  int pid = 0;
  for (long got; count < room && (got = read_fd(static_cast<int>(fd), text, sizeof text)) > 0;) {
    for (long i = 0; i < got && count < room; ++i) {
      if (text[i] != '\n') {
        pid = pid * 10 + (text[i] - '0');
        continue;
      }
      if (pid != session.shell->pid) pids[count++] = pid;
      pid = 0;
    }
  }
  close_fd(static_cast<int>(fd));
  return count;
}

bool contains(const int* pids, unsigned count, int pid) {
  for (unsigned i = 0; i < count; ++i)
    if (pids[i] == pid) return true;
  return false;
}

struct ProcessState {
  int parent;      ///< 0: it is gone
  bool unstarted;  ///< forked, and still the program that its parent is
};

ProcessState state_of(int pid) {
  constexpr uint64_t kForkedNoExec = 0x40;  // PF_FORKNOEXEC
  char path[32] = "/proc/", text[256];
  write_number(path + 6, static_cast<uint32_t>(pid));
  memcpy(path + strlen(path), "/stat", 6);
  const long fd = open_at(-100, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const long got = read_fd(static_cast<int>(fd), text, sizeof text);
  close_fd(static_cast<int>(fd));
  // "PID (NAME) STATE PARENT GROUP SESSION TERMINAL FOREGROUND FLAGS …", of which the name may hold anything.
  long at = got - 1;
  while (at > 0 && text[at] != ')') --at;
  uint64_t fields[6] = {};
  at += 4;
  for (uint64_t& field : fields) {
    for (; at < got && text[at] != ' '; ++at)
      if (text[at] >= '0' && text[at] <= '9') field = field * 10 + static_cast<uint64_t>(text[at] - '0');
    ++at;
  }
  return {static_cast<int>(fields[0]), (fields[5] & kForkedNoExec) != 0};
}

enum class Whom { All, NewChildren };

// False when there is nobody. NewChildren: of the shell, and not there as what they are when it was interrupted.
bool signal_members(const Session& session, uint32_t signal, Whom whom = Whom::All) {
  int pids[kBatch], still[kBatch];
  int handles[kBatch];
  unsigned count = read_members(session, pids, kBatch);
  for (unsigned i = 0; whom == Whom::NewChildren && i < count;) {
    const bool is_new = !contains(session.signalled, session.signalled_count, pids[i]);
    const ProcessState state = state_of(pids[i]);
    const bool started = !state.unstarted || !contains(session.signalled, session.signalled_count, -pids[i]);
    if (is_new && state.parent == session.shell->pid && started) {
      ++i;
    } else {
      pids[i] = pids[--count];
    }
  }
  for (unsigned i = 0; i < count; ++i) handles[i] = static_cast<int>(sys(__NR_pidfd_open, pids[i], 0));
  // A pid may have become another's between the two calls; that one is no member.
  const unsigned left = read_members(session, still, kBatch);
  // The last of a pipeline first: it would end by itself, and well, when those before it are gone.
  for (unsigned i = count; i-- > 0;) {
    if (handles[i] < 0) continue;
    if (contains(still, left, pids[i])) sys(__NR_pidfd_send_signal, handles[i], signal, nullptr, 0);
    close_fd(handles[i]);
  }
  return count > 0;
}

constexpr uint64_t kFirstPatience = 300'000, kLastPatience = 10'000'000;

// Whatever it runs, it comes back to its script, of which it may have forgotten what it had read. It is asked before
// the signal, so that it finds something to read and does not wait; what it answers to that may be from before the
// signal, so on_report asks once more.
void interrupt_shell(Session& session) {
  const uint64_t now = monotonic_us();
  if (!session.interrupted) session.patience_us = kFirstPatience;
  if (!session.interrupted || now >= session.ask_again_us) {
    ask_for_end(session, Then::ReadOn);
    session.ask_again_us = now + session.patience_us;
  }
  session.interrupted = true;
  session.signalled_count = read_members(session, session.signalled, kRemembered);
  // A child that has not begun its program yet takes the signal as its shell would, and forgets it in beginning.
  for (unsigned i = 0; i < session.signalled_count; ++i) {
    const ProcessState state = state_of(session.signalled[i]);
    if (state.parent == session.shell->pid && state.unstarted) session.signalled[i] = -session.signalled[i];
  }
  if (session.shell->pid > 0) sys(__NR_kill, session.shell->pid, SIGINT);
}

// The shell first, as a terminal would have it: one that waits goes on in its text when what it waits for dies of
// SIGINT, unless it has had one itself by then.
void interrupt_all(Session& session) {
  interrupt_shell(session);
  signal_members(session, SIGINT);
}

// What the command has left running gets a cgroup of its own, so that a later command's end does not concern it.
void part_with_jobs(Session& session, uint32_t number) {
  int pids[kBatch];
  unsigned count = read_members(session, pids, kBatch);
  if (!count) return;
  char name[16] = "x";
  write_number(name + 1, number);
  if (sys(__NR_mkdirat, session.shell->cgroup, name, 0755) < 0) return;
  const long directory = open_at(session.shell->cgroup, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const long procs =
      directory < 0 ? directory : open_at(static_cast<int>(directory), "cgroup.procs", O_WRONLY | O_CLOEXEC);
  // More than once: what forks meanwhile leaves a child behind.
  for (int rounds = 0; procs >= 0 && count && rounds < 16; ++rounds) {
    for (unsigned i = 0; i < count; ++i) {
      char text[12];
      write_number(text, static_cast<uint32_t>(pids[i]));
      write_fd(static_cast<int>(procs), text, strlen(text));
    }
    count = read_members(session, pids, kBatch);
  }
  if (procs >= 0) close_fd(static_cast<int>(procs));
  if (directory >= 0) close_fd(static_cast<int>(directory));
  linger({session.number, number});
}

void finish_command(Session& session, Command& command) {
  const uint32_t status = static_cast<uint32_t>(session.status);
  wire::Cause& cause = command.result.cause;
  command.result.exit_code = status;
  cause = wire::Cause::Exited;
  if (status == 128 + SIGKILL && oom_kills() > command.oom_kills) {
    cause = wire::Cause::OutOfMemory;
    command.result.signal = SIGKILL;
  }
  if (command.timed_out) cause = wire::Cause::TimedOut;
  session.last_status = status;
  part_with_jobs(session, command.number);
  end_command(command);
}

// A terminal passes on what is written to it later, and in order: once this comes out nothing is on its way any more.
void begin_draining(Session& session, Command& command) {
  make_nonce(session);
  session.draining = true;
  command.deadline_us = monotonic_us() + 500'000;
  if (write_fd(session.slave, session.nonce, sizeof session.nonce - 1) != sizeof session.nonce - 1) {
    command.deadline_us = 1;
  }
}

void on_end(Session& session, Command& command) {
  if (command.timed_out) {
    command.emptying = true;
    check_session_timeout(command, monotonic_us());
  } else if (session.tty) {
    begin_draining(session, command);
  } else {
    finish_command(session, command);
  }
}

uint32_t take_number(const char*& at, const char* end) {
  uint32_t value = 0;
  while (at < end && *at >= '0' && *at <= '9' && value < 1u << 24)
    value = value * 10 + static_cast<uint32_t>(*at++ - '0');
  if (at < end && *at == ' ') ++at;
  return value;
}

// "r", "s NUMBER", "e NONCE ASKED STATUS": the sandbox can write here what it likes.
void on_report(Session& session, const char* line, size_t size) {
  Command* const command = session.running;
  const char* const end = line + size;
  if (size == 1 && *line == 'r' && !session.ready) {
    session.ready = true;
    for (Client* client = keeper.clients; client; client = client->next) {
      if (client->session != &session) continue;
      client->session = nullptr;
      send_session(*client, session);
    }
    return;
  }
  if (!command || size < 2) return;
  const char* at = line + 1;
  if (*line == 's' && take_number(at, end) == command->number && !session.asked) {
    close_if_open(session.held_input);
    ask_for_end(session);
    return;
  }
  constexpr size_t kNonce = sizeof session.nonce - 1;
  if (*line != 'e' || size < kNonce + 3 || memcmp(at, session.nonce, kNonce) != 0) return;
  at += kNonce + 1;
  const uint32_t asked = take_number(at, end), status = take_number(at, end);
  if (session.status < 0) session.status = static_cast<int>(status & 0xff);
  // Seen of busybox: interrupted just when it has told of the death, it says 0.
  if (session.killed && session.status == 0) session.status = 128 + SIGKILL;
  if (asked != session.asked || session.draining || command->emptying) return;
  if (session.interrupted) {
    session.interrupted = false;
    ask_for_end(session);
    session.ask_again_us = monotonic_us() + session.patience_us;
    return;
  }
  session.ask_again_us = 0;
  on_end(session, *command);
}

void forget(Session& session) {
  Session** at = &keeper.sessions;
  while (*at != &session) at = &(*at)->next;
  *at = session.next;
  close_source(session.control);
  close_if_open(session.directory);
  close_if_open(session.master);
  close_if_open(session.slave);
  close_if_open(session.held_input);
  session.name.clear();
  session.line.clear();
  session.tail.clear();
  destroy(&session);
}

void give_to_shell(Session& session, Command& command) {
  command.start_us = monotonic_us();
  command.deadline_us = command.timeout_ms ? command.start_us + command.timeout_ms * 1000 : 0;
  tell_start(command);
  send_command_line(session, command.number, command.has_stdin);
}

void on_start_recorded(void* owner, long error) {
  Command& command = *static_cast<Command*>(owner);
  // Its session has ended in the meantime.
  if (command.ended) return;
  if (!error) return give_to_shell(*session_of(command), command);
  tell_start(command);
  command.result.cause = wire::Cause::Lost;
  command.result.failure.set("flush the record of the operation", "", error);
  end_command(command);
}

}  // namespace

void open_session(Client& client, const char* frame, size_t size) {
  wire::Reader reader(frame, size);
  const Text name = reader.str();
  if (!reader.ok()) return refuse(client, "read the request", "", -EPROTO);
  if (name.size && find_session(name)) return refuse(client, "open session", name.data, -EEXIST);
  Session* const session = make<Session>();
  session->control = {SourceKind::Control, -1, 0, session};
  session->directory = session->master = session->slave = session->held_input = session->status = -1;
  session->opened_us = wall_time_us();
  // With the NUL, for messages.
  session->name.append(name.data, name.size + 1);
  --session->name.size;
  session->next = keeper.sessions;
  keeper.sessions = session;
  client.session = session;
  Buffer shell = {};
  shell.append(reader.rest(), reader.left());
  // The shell's own standard input is its script, whatever its commands have.
  uint32_t flags = 0;
  if (shell.size >= sizeof flags) {
    memcpy(&flags, shell.data, sizeof flags);
    session->tty = flags & wire::kExecTty;
    flags = wire::kExecStdin;
    memcpy(shell.data, &flags, sizeof flags);
  }
  const uint32_t before = keeper.command_count;
  start_command(client, shell, session);
  if (keeper.command_count == before) {
    // It was refused, and the client told so.
    client.session = nullptr;
    forget(*session);
  }
}

long prepare_shell(Command& shell, Entry& entry, uint16_t rows, uint16_t columns) {
  Session& session = *shell.shell_of;
  session.shell = &shell;
  session.number = shell.number;
  session.uid = keeper.config.outside(entry.user.uid);
  session.gid = keeper.config.outside(entry.user.gid);
  long done = open_private_place();
  if (done < 0) return done;
  entry.place = session.directory = static_cast<int>(done);
  done = make_pipe(&session.control.fd, &entry.control);
  if (done < 0) return done;
  set_nonblocking(session.control.fd);
  watch(session.control, EPOLLIN);
  if (session.tty) {
    done = open_terminal(entry.user, rows, columns, session.master, session.slave);
    if (done < 0) return done;
    set_nonblocking(session.slave);
    entry.terminal = session.slave;
  }
  Buffer line = {};
  line.append("PS1= PS2=; unset PROMPT_COMMAND; \\command echo r >&9");
  line.append(kReadOn);
  send_line(session, line);
  return 0;
}

void run_in_session(Client& client, const char* frame, size_t size) {
  wire::Reader reader(frame, size);
  const Text id = reader.str();
  const uint32_t flags = reader.u32();
  const uint16_t rows = reader.u16(), columns = reader.u16();
  const uint64_t timeout_ms = reader.u64(), output_limit = reader.u64();
  const Text text = reader.str();
  OperationRequest request = {};
  request.kind = "session";
  request.op_id = reader.str();
  request.origin = reader.u32();
  request.request = reader.str();
  if (!reader.ok()) return refuse(client, "read the request", "", -EPROTO);
  if (find_named(request.op_id)) return send(client, wire::Type::Known, nullptr, 0);
  Session* const session = find_session(id);
  if (!session || !session->ready) return refuse(client, "find session", id.data, -ENOENT);
  if (session->running) return refuse(client, "run a second command in session", id.data, -EBUSY);
  if (keeper.ending) return refuse(client, "execute in a sandbox that is ending", "", 0);

  int output = -1, error = -1, input = -1;
  const bool has_input = session->tty || flags & wire::kExecStdin;
  long done = write_text(*session, text);
  if (done >= 0 && session->tty) {
    const winsize window = {rows, columns, 0, 0};
    sys(__NR_ioctl, session->master, TIOCSWINSZ, &window);
    done = output = static_cast<int>(sys(__NR_fcntl, session->master, F_DUPFD_CLOEXEC, 0));
    if (done >= 0) done = input = static_cast<int>(sys(__NR_fcntl, session->master, F_DUPFD_CLOEXEC, 0));
  } else {
    if (done >= 0) done = open_output(*session, "out", output);
    if (done >= 0) done = open_output(*session, "err", error);
    if (done >= 0 && has_input) done = open_input(*session, input);
  }
  if (done < 0) {
    close_if_open(output);
    close_if_open(error);
    close_if_open(input);
    close_if_open(session->held_input);
    return refuse(client, "open the streams of a command in session", id.data, done);
  }

  Command* const command = make_command();
  write_number(command->id, keeper.command_count + 1);
  request.exec_id = command->id;
  Failure failure = {};
  if (!begin_operation(command->operation, request, failure)) {
    close_if_open(output);
    close_if_open(error);
    close_if_open(input);
    close_if_open(session->held_input);
    destroy(command);
    return send_failure(client, failure);
  }
  add_command(*command, output_limit);
  ++keeper.running_count;
  command->timeout_ms = timeout_ms;
  command->session = session->number;
  command->tty = session->tty;
  command->detached = flags & wire::kExecDetach;
  command->has_stdin = has_input;
  command->output.fd = output;
  command->error.fd = error;
  command->input.fd = input;
  // Its argv is its text, in a frame of its own.
  command->frame.append(text.data, size_t{text.size} + 1);
  command->argv.items = static_cast<char**>(allocate(2 * sizeof(char*)));
  command->argv.items[0] = command->frame.data;
  command->argv.items[1] = nullptr;
  command->argv.count = 1;
  session->running = command;
  ++session->commands;
  session->asked = 0;
  session->status = -1;
  session->interrupted = session->killed = false;
  session->ask_again_us = 0;
  make_nonce(*session);
  client.command = command;
  client.owns_input = has_input;
  client.started = client.awaits_start = true;
  watch(command->output, EPOLLIN);
  if (command->error.fd >= 0) watch(command->error, EPOLLIN);
  if (!command->operation.named) return give_to_shell(*session, *command);
  command->start_disk.owner = command;
  command->start_disk.ready = on_start_recorded;
  await_disk(command->start_disk);
}

void list_sessions(Client& client) {
  for (const Session* session = keeper.sessions; session; session = session->next) {
    if (session->ready) send_session(client, *session);
  }
  send(client, wire::Type::Done, nullptr, 0);
}

void close_session(Client& client, const Text& id) {
  Session* const session = find_session(id);
  if (!session || !session->shell) return refuse(client, "find session", id.data, -ENOENT);
  client.session = session;
  kill_command(*session->shell);
}

void forget_client(Client& client) {
  Session* const session = client.session;
  client.session = nullptr;
  // Nobody else knows of it yet.
  if (session && !session->ready && session->shell) kill_command(*session->shell);
}

void end_session(Command& shell) {
  Session& session = *shell.shell_of;
  kill_command(shell);
  for (Client* client = keeper.clients; client; client = client->next) {
    if (client->session != &session) continue;
    client->session = nullptr;
    if (session.ready) {
      send(*client, wire::Type::Done, nullptr, 0);
    } else if (shell.result.failure.failed()) {
      send_failure(*client, shell.result.failure);
    } else {
      refuse(*client, "open a session: this is no shell, or it ended at once:", shell.argv.items[0], 0);
    }
  }
  if (Command* const command = session.running) {
    const bool timed_out = command->timed_out;
    session.draining = false;
    command->result = shell.result;
    if (timed_out) command->result.cause = wire::Cause::TimedOut;
    command->result.session_ended = true;
    if (session.tty) on_output(*command, 0);
    on_output(shell, 0);
    end_command(*command);
  }
  shell.shell_of = nullptr;
  forget(session);
}

void leave_session(Command& command) {
  Session* const session = session_of(command);
  if (session && session->running == &command) session->running = nullptr;
  if (!session || !session->tty) return;
  // The terminal outlives the command.
  close_source(command.output);
}

void on_control(Session& session) {
  char text[512];
  const long got = read_fd(session.control.fd, text, sizeof text);
  if (got == -EAGAIN || got == -EINTR) return;
  if (got <= 0) return close_source(session.control);
  for (long i = 0; i < got; ++i) {
    if (text[i] != '\n') {
      if (session.line.size < kLongestReport) session.line.append(text + i, 1);
      continue;
    }
    on_report(session, session.line.data, session.line.size);
    session.line.size = 0;
  }
}

void signal_session_command(Command& command, uint32_t number) {
  Session* const session = session_of(command);
  if (!session || session->status >= 0) return;
  if (number == SIGINT) return interrupt_all(*session);
  if (signal_members(*session, number) && number == SIGKILL) session->killed = true;
  // The shell itself would take most signals for its own end, and ignores the others.
  if (number == SIGTERM || number == SIGHUP || number == SIGQUIT || number == SIGKILL) {
    interrupt_shell(*session);
  }
}

void check_session_timeout(Command& command, uint64_t now) {
  constexpr uint64_t kAskAgain = 100'000, kTerminate = 250'000, kKill = 500'000, kKillShell = 3'000'000,
                     kKillAgain = 5'000, kGiveUp = 8'000'000;
  Session* const session = session_of(command);
  if (!session) return;
  if (session->draining) {
    // A terminal that was stopped, or is full, passes nothing on.
    session->draining = false;
    deliver(command, 0, session->tail.data, session->tail.size);
    return finish_command(*session, command);
  }
  if (!command.timed_out) {
    command.timed_out = true;
    command.give_up_us = now;
  }
  const uint64_t late = now - command.give_up_us;
  if (command.emptying) {
    // The shell is back. Whatever the command has started goes, too; what it left in the background is no exception.
    if (!signal_members(*session, SIGKILL) || late >= kGiveUp) return finish_command(*session, command);
    command.deadline_us = now + 2'000;
    return;
  }
  if (late >= kKillShell) {
    if (late >= kGiveUp) {
      command.result.cause = wire::Cause::TimedOut;
      command.result.signal = SIGKILL;
      command.result.session_ended = true;
      return end_command(command);
    }
    kill_command(*session->shell);
  } else {
    if (late < kTerminate) {
      interrupt_all(*session);
    } else {
      signal_members(*session, late >= kKill ? SIGKILL : SIGTERM);
      interrupt_shell(*session);
    }
  }
  // What is killed does not take its shell along, as an interrupt does: that must not get far in the text.
  command.deadline_us = now + (late >= kKill && late < kKillShell ? kKillAgain : kAskAgain);
}

Command& hearer_of(Command& shell) {
  Session& session = *shell.shell_of;
  return session.running ? *session.running : shell;
}

uint64_t next_question(uint64_t now) {
  uint64_t next = 0;
  for (Session* session = keeper.sessions; session; session = session->next) {
    if (!session->ask_again_us || !session->running) continue;
    if (now >= session->ask_again_us) {
      // The question may have been lost with the signal; the command may as well not care for signals. A shell that
      // gets one just before it makes a child goes on as if it were meant for that, which is why it has one now.
      if (session->interrupted && signal_members(*session, SIGINT, Whom::NewChildren)) {
        sys(__NR_kill, session->shell->pid, SIGINT);
      }
      ask_for_end(*session);
      session->patience_us *= 2;
      session->ask_again_us = session->patience_us > kLastPatience ? 0 : now + session->patience_us;
    }
    if (session->ask_again_us && (!next || session->ask_again_us < next)) next = session->ask_again_us;
  }
  return next;
}

bool take_from_terminal(Command& command, const char* data, size_t size) {
  Session* const session = session_of(command);
  if (!session || !session->draining) {
    deliver(command, 0, data, size);
    return false;
  }
  Buffer& tail = session->tail;
  tail.append(data, size);
  constexpr size_t kNonce = sizeof session->nonce - 1;
  for (size_t at = 0; at + kNonce <= tail.size; ++at) {
    if (memcmp(tail.data + at, session->nonce, kNonce) != 0) continue;
    deliver(command, 0, tail.data, at);
    deliver(command, 0, tail.data + at + kNonce, tail.size - at - kNonce);
    tail.size = 0;
    session->draining = false;
    finish_command(*session, command);
    return true;
  }
  return false;
}

}  // namespace dsec::guest
