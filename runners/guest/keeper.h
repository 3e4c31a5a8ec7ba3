#pragma once

#include "runners/guest/enter.h"
#include "runners/guest/spool.h"
#include "runners/guest/trajectory.h"

namespace dsec::guest {

/// Runs the keeper of one sandbox to its end; the Start frame comes over descriptor 3.
/// `shown`: the last word of its arguments, which ps(1) shows.
int run_keeper(char* shown);

/// Whose descriptor epoll reports.
enum class SourceKind : uint32_t {
  Listener,
  Signals,
  Client,
  Output,
  Error,
  Input,
  Control,
  Freezer,
  Channel,
  Relay,
  Memory,
  Monitor
};
struct Source {
  SourceKind kind;
  int fd;           ///< -1: none
  uint32_t events;  ///< as registered; 0 while it rests
  void* owner;
};

struct Client;

struct Result {
  wire::Cause cause;
  uint32_t exit_code, signal;
  uint64_t duration_us;
  Failure failure;                                ///< for CannotExecute, NotFound, Lost
  bool session_ended;                             ///< with it, or before its end: its session is of no use any more
  uint64_t oom_kills, memory_limit, memory_peak;  ///< since it began; bytes of the sandbox, 0: none, or unknown
};

struct Session;
struct GuestStream;

/// One command of the sandbox. `id` names it.
struct Command {
  Command* next;
  uint32_t number;
  char id[12];
  Buffer frame;  ///< of the request: argv points into it
  Strings argv, env;
  Buffer env_text;    ///< entries of env that we made
  Entry* entry;       ///< until the command runs or cannot
  Session* shell_of;  ///< it is the shell of this session, which lives as long as it is not reported
  uint32_t session;   ///< number of the session that it runs in; 0: a process of its own
  Source output, error, input;
  size_t asked_size;  ///< of `frame`: what was asked for, without how it is recorded
  GuestStream*
      stream;       ///< of the machine's channel, which carries it instead of processes of ours; null: none (any more)
  bool console;     ///< it is the console of the machine, which no process of ours and none of the guest's is
  Buffer guest_id;  ///< what the guest calls it
  Buffer guest_step;  ///< what result.failure points to when the guest has told it
  /// Signals that came while `entry` was there, by number - 1: its process group does not exist before its exec.
  uint64_t early_signals;
  int pid, cgroup;
  bool detached;  ///< whoever started it does not wait for its end
  bool tied;      ///< or has to be there for it to go on
  bool tty, main, has_stdin, input_ends, running, timed_out;
  bool ended;     ///< its result stands
  bool reported;  ///< and was told; in between the disk is waited for when the caller named the operation
  bool starting;  ///< it is entered when its beginning is on the disk
  bool emptying;  ///< it has ended by its timeout; its result waits until nothing of its tree is left
  uint64_t start_us, deadline_us, give_up_us;  ///< monotonic; 0: none
  uint64_t read_us, gather_us;  ///< when its output was read last; until when more of it is waited for, 0: it is not
  uint64_t oom_kills;           ///< of the sandbox when it began
  Buffer pending_input;
  Spool spool;
  Result result;
  Buffer failure_object;  ///< of result.failure, which outlives what it names
  Operation operation;
  DiskWait start_disk, end_disk;
  uint64_t timeout_ms;  ///< counted from when it is entered
  Buffer given;         ///< its input as it is recorded, until there is a file for it
  uint64_t given_size;  ///< of what is kept, in `given` or the file
  int given_fd;         ///< -1: none
};

/// An operation that a client carries out.
struct ClientOperation {
  ClientOperation* next;
  Client* client;  ///< null when its connection has ended
  Operation operation;
  DiskWait disk;
  bool open;   ///< its beginning is on the disk, its end is not told
  bool stops;  ///< ended by the end of the sandbox, whose last words nobody could answer
  bool types;  ///< the same when what was typed has had the machine's system turn it off
};

/// One connection of dsec.
struct Client {
  Client* next;
  Source source;
  Buffer in, out;
  int fds[kMaxClientDescriptors];  ///< that came with what it asks for
  unsigned fd_count;
  Command* command;  ///< whose output it gets
  Session* session;  ///< whose opening or end it waits for
  bool owns_input;   ///< it started the command, so its end is the end of the input
  bool started;      ///< it started the command
  bool waits_for_end, waits_for_pause, dead;
  bool holds;         ///< wants the sandbox frozen for as long as it is connected
  bool acts;          ///< does more than look: its end begins the time of idleness anew
  bool awaits_start;  ///< it is told when its command is entered
  ClientOperation* operations;
  const NamedOperation* waits_for;  ///< whose end it is told, as Known
};

/// How the sandbox is frozen, by its cgroup: because it is paused, or because a client holds it. See pause.cc.
struct Pause {
  /// Resting: the guest of a machine gives memory back first.
  enum class Freezer : uint32_t { Thawed, Resting, Freezing, Frozen };
  Freezer freezer;
  bool wanted;  ///< somebody paused it, or it was idle; until an operation comes
  uint32_t holds;
  Source events;           ///< cgroup.events while it is Freezing
  uint64_t give_up_us;     ///< of Freezing; of Resting when it is frozen
  int reclaimer_pid;       ///< child that gives memory back; 0: none
  bool swaps;              ///< its memory may go to swap, which a limit of memory excludes while it runs
  uint64_t since_wall_us;  ///< paused since
  int64_t memory_before;   ///< bytes of the memory group before it was frozen; negative: there is no such group
};

/// What ended commands leave running has a cgroup until that is empty: x<number>, or x<session>/x<number>.
struct Lingering {
  uint32_t session, number;
};

struct Keeper {
  Config config;
  int origin_network;  ///< the namespace to come back to from the machine's; 0: nothing goes out there
  int epoll, directory, commands_log, origin_namespace, init_pid, init_pidfd, self_pid;
  uint64_t start_ticks;
  SpoolDirectory spool_directory;
  Source listener, signals;
  Command* commands;
  Client* clients;
  Session* sessions;
  Entry* spare_entry;
  uint32_t command_count, running_count;
  Lingering* lingering;
  uint32_t lingering_count, lingering_room;
  uint64_t started_wall_us, ended_wall_us;
  uint64_t began_us;                        ///< monotonic
  uint64_t end_us, idle_since_us, stop_us;  ///< monotonic; 0: none
  uint64_t kill_us;                         ///< when a machine that was told to end is killed; 0: it was not
  uint64_t leave_us;                        ///< when a machine whose guest has ended is ended, too; 0: it has not
  const char* leave_reason;                 ///< why its guest ended
  bool ending, init_ended;
  bool turned_off;     ///< by the system of the machine
  bool complete;       ///< it has the mounts that were left for its first command
  bool has_state;      ///< state.json is there
  bool machine_began;  ///< its machine is ready, or will never be spoken to
  bool unmade;         ///< nobody has it, as its making was given up: it leaves no record
  bool at_once;        ///< it is not to end in its own time
  Client* creator;     ///< whoever makes the sandbox, as long as it is there
  bool attended;       ///< who started the main command was there at its end, and removes the sandbox if it is to go
  const char* state;   ///< as state.json has it
  const char* reason;  ///< why it ends
  Failure failure;
  Buffer main_record;  ///< JSON of the main command, once there is one
  Pause pause;
};
extern Keeper keeper;

// keeper.cc
void watch(Source& source, uint32_t events);
void unwatch(Source& source);
/// Ends everything in the sandbox; the rest happens when PID 1 is reaped.
void begin_end(const char* state, const char* reason);
void note_activity();
/// Before something is done inside: the sandbox has all its mounts. False with `failure` set.
bool complete_sandbox(Failure& failure);
/// A command runs, or somebody is attached to one.
bool is_busy();

// commands.cc
void start_command(Client& client, Buffer frame, Session* shell_of = nullptr);
/// Enters it, once its beginning is on the disk where somebody relies on that.
void begin_when_recorded(Command& command);
/// Without number, and not in the list yet.
Command* make_command();
/// It gets its number and its spool, and runs from now on.
void add_command(Command& command, uint64_t output_limit);
/// It is the command that the sandbox is told of with.
void record_main(const Command& command);
/// That it begins, to who asked for it.
void tell_start(Command& command);
void end_command(Command& command);
void linger(Lingering what);
void close_source(Source& source);
void set_nonblocking(int fd);
int make_pipe(int* read_end, int* write_end);
/// A new pseudo-terminal of the sandbox, for `user`. 0 or a negative errno.
long open_terminal(const User& user, uint16_t rows, uint16_t columns, int& master, int& slave);
void feed(Command& command, const char* data, size_t size);
void end_input(Command& command);
void kill_command(Command& command);
/// What kill(2) is given so that a signal of this number reaches whom it is for: the command itself when it is one that
/// programs give a meaning of their own, else its whole process group, as a terminal would.
int signal_target(const Command& command, uint32_t number);
void on_output(Command& command, unsigned stream);
/// To the spool and to who is attached.
void deliver(Command& command, unsigned stream, const char* data, size_t size);
void on_input_room(Command& command);
/// A command has ended.
bool reap(int pid, int status);
/// Notes which commands have reached their exec.
void note_entered();
/// When to look again, because a signal waits for that (monotonic); 0: no need.
uint64_t next_look(uint64_t now);
/// Kills what takes too long, and reports it once its whole tree is gone.
void check_timeouts(uint64_t now);
/// Reads what the pipes still hold, reports what is not reported.
void finish_commands();
void sweep_commands();
void remove_lingering();
void append_result_json(Buffer& out, const Command& command);

// record.cc
/// What is recorded of a command's end; of a long output, links to its spool.
void append_command_record(Buffer& out, Command& command);
void note_input(Command& command, const char* data, size_t size);
// sessions.cc
void open_session(Client& client, const char* frame, size_t size);
void run_in_session(Client& client, const char* frame, size_t size);
void list_sessions(Client& client);
void close_session(Client& client, const Text& id);
/// Nobody waits for it any more.
void forget_client(Client& client);
/// What a session's shell gets beyond streams. 0 or a negative errno.
long prepare_shell(Command& shell, Entry& entry, uint16_t rows, uint16_t columns);
/// The shell has ended, or never ran: so has the command in it.
void end_session(Command& shell);
/// Its session can run another.
void leave_session(Command& command);
void on_control(Session& session);
void signal_session_command(Command& command, uint32_t number);
void check_session_timeout(Command& command, uint64_t now);
/// Who gets what a shell says on its own standard output, of a trap for example: the command that runs in it, or
/// itself.
Command& hearer_of(Command& shell);
/// Asks shells again that have been interrupted and give no answer; when to come back (monotonic), 0: never.
uint64_t next_question(uint64_t now);
/// Output of a command at its session's terminal. True when that was the last of it, and the command has ended.
bool take_from_terminal(Command& command, const char* data, size_t size);

// clients.cc
void accept_client();
Client* add_client(int fd);
void on_client(Client& client, uint32_t events);
void send(Client& client, wire::Type type, const void* a, size_t a_size, const void* b = nullptr, size_t b_size = 0);
void send_failure(Client& client, const Failure& failure);
void send_result(Client& client, const Command& command);
bool has_backlog(const Command& command);
void sweep_clients();
/// Whether operations that clients carry out are open.
bool has_open_operations();
/// Of the sandbox that has ended: what its clients called a stop was carried out.
void end_stops();
/// The end of `named` is on the disk: tells those who asked for it.
void tell_known(const NamedOperation* named);

// machine.cc
/// What commands, sessions and streams are in a sandbox that is a machine. They run in its guest, which has a keeper of
/// its own; this one keeps what they say, and records.
/// The channel is there, and the guest at its other end ready.
void begin_machine(Client& client);
/// Whether it is there, still.
bool has_machine();
/// Its guest has ended, so the machine ends; one with a system of its own may be turning itself off, and has time to.
void end_with_guest(const char* why);
/// What the console says is kept from now on. `ours`: our end.
void open_console(int ours);
/// It is carried by the guest, not by descriptors of ours.
inline bool is_in_guest(const Command& command) { return keeper.config.is_machine() && !command.console; }
/// Of a command whose beginning is on the disk.
void enter_machine_command(Command& command);
void feed_machine_command(Command& command, const char* data, size_t size);
void end_machine_input(Command& command);
bool machine_input_is_full(const Command& command);
void resize_machine_command(Command& command, uint16_t rows, uint16_t columns);
void signal_machine_command(Command& command, uint32_t number);
/// The guest ends what takes too long; this one gives up on a guest that does not.
void check_machine_timeout(Command& command, uint64_t now);
/// Nobody waits for what its stream would still say.
void leave_stream(Command& command);
void ask_machine(Client& client, wire::Type type, const char* data, size_t size);
void run_in_machine_session(Client& client, const char* frame, size_t size);
void relay(Client& client, wire::Reader& reader);
void control_machine(Client& client, wire::Reader& reader);
void forget_machine_client(Client& client);

// machine_quiesce.cc
/// For a client that saves the machine: its guest stands still until the client is gone.
void quiesce_machine(Client& client, wire::Reader& reader);
void on_monitor(uint32_t events);
bool is_quiesced();
/// The client that did is gone.
void end_quiescence(Client& client);

void on_machine_channel(uint32_t events);
void on_relay(GuestStream& stream, uint32_t events);
/// A guest that stood still without knowing it learns what time it is, before anything else that it is asked.
void tell_time();
/// See channel::Type::Rest; on_rest() follows. False: nobody could be asked.
bool ask_to_rest();
/// Gives the guest credit that was held back.
void resume_streams();
/// Asks the guest to write its disk out and to end. False: nobody could be asked.
bool power_off_machine();

// remover.cc
/// Executes what removes the sandbox in place of the keeper; returns only when that is not possible.
void become_remover();
// pause.cc
void pause(Client& client);
void hold(Client& client);
/// To be called when a client goes: what it held is released.
void release_hold(Client& client);
/// With kStartIdle: whether the groups are idle now. What is to end or to freeze must run, however busy the host is.
void set_idle(bool idle);
/// Limit and peak of the sandbox's memory in bytes; 0: none, or this kernel does not tell.
void read_memory(uint64_t& limit, uint64_t& peak);
/// For any operation: resumes what is paused.
void wake();
void on_freezer_event();
/// The guest of a machine has come to rest, or cannot.
void on_rest();
/// Freezes what is idle; gives up on what does not freeze.
void check_pause(uint64_t now);
uint64_t next_pause_deadline();
/// Whether the child that ended was ours.
bool reap_reclaimer(int pid);

// state.cc
void write_state();
uint64_t oom_kills();
/// Adds to the result what the kernel has killed for lack of memory since the command began, and the figures.
void note_memory(Command& command);
void append_text_json(Buffer& out, const char* key, const char* data, size_t size);

}  // namespace dsec::guest
