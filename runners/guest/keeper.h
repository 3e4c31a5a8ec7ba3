#pragma once

#include "runners/guest/enter.h"
#include "runners/guest/spool.h"

namespace dsec::guest {

/// Runs the keeper of one sandbox to its end; the Start frame comes over descriptor 3.
int run_keeper();

/// Whose descriptor epoll reports.
enum class SourceKind : uint32_t { Listener, Signals, Client, Output, Error, Input };
struct Source {
  SourceKind kind;
  int fd;           ///< -1: none
  uint32_t events;  ///< as registered; 0 while it rests
  void* owner;
};

struct Result {
  wire::Cause cause;
  uint32_t exit_code, signal;
  uint64_t duration_us;
  Failure failure;  ///< for CannotExecute, NotFound, Lost
};

/// One command of the sandbox. `id` names it.
struct Command {
  Command* next;
  uint32_t number;
  char id[12];
  Buffer frame;  ///< of the request: argv points into it
  Strings argv, env;
  Buffer env_text;  ///< entries of env that we made
  Entry* entry;     ///< until the command runs or cannot
  Source output, error, input;
  /// Signals that came while `entry` was there, by number - 1: its process group does not exist before its exec.
  uint64_t early_signals;
  int pid, cgroup;
  bool tty, main, has_stdin, input_ends, running, reported, timed_out;
  bool detached;  ///< whoever started it does not wait for its end
  bool emptying;  ///< it has ended by its timeout; its result waits until nothing of its tree is left
  uint64_t start_us, deadline_us, give_up_us;  ///< monotonic; 0: none
  uint64_t oom_kills;                          ///< of the sandbox when it began
  Buffer pending_input;
  Spool spool;
  Result result;
};

/// One connection of dsec.
struct Client {
  Client* next;
  Source source;
  Buffer in, out;
  Command* command;  ///< whose output it gets
  bool owns_input;   ///< it started the command, so its end is the end of the input
  bool started;      ///< it started the command
  bool waits_for_end, dead;
};

struct Keeper {
  Config config;
  int epoll, directory, commands_log, origin_namespace, init_pid, init_pidfd, self_pid;
  uint64_t start_ticks;
  SpoolDirectory spool_directory;
  Source listener, signals;
  Command* commands;
  Client* clients;
  Entry* spare_entry;
  uint32_t command_count, running_count;
  uint32_t* lingering;  ///< numbers of ended commands whose cgroup still has processes
  uint32_t lingering_count, lingering_room;
  uint64_t started_wall_us, ended_wall_us;
  uint64_t end_us, idle_since_us, stop_us;  ///< monotonic; 0: none
  bool ending, init_ended;
  bool attended;       ///< who started the main command was there at its end, and removes the sandbox if it is to go
  const char* state;   ///< as state.json has it
  const char* reason;  ///< why it ends
  Failure failure;
  Buffer main_record;  ///< JSON of the main command, once there is one
};
extern Keeper keeper;

// keeper.cc
void watch(Source& source, uint32_t events);
void unwatch(Source& source);
/// Ends everything in the sandbox; the rest happens when PID 1 is reaped.
void begin_end(const char* state, const char* reason);
void note_activity();

// commands.cc
void start_command(Client& client, Buffer frame);
void feed(Command& command, const char* data, size_t size);
void end_input(Command& command);
void kill_command(Command& command);
/// What kill(2) is given so that a signal of this number reaches whom it is for: the command itself when it is one that
/// programs give a meaning of their own, else its whole process group, as a terminal would.
int signal_target(const Command& command, uint32_t number);
void on_output(Command& command, unsigned stream);
void on_input_room(Command& command);
/// A child has ended: a helper, or the command itself.
bool reap(int pid, int status);
/// Kills what takes too long, and reports it once its whole tree is gone.
void check_timeouts(uint64_t now);
/// Reads what the pipes still hold, reports what is not reported.
void finish_commands();
void sweep_commands();
void remove_lingering();
void append_result_json(Buffer& out, const Command& command);

// clients.cc
void accept_client();
Client* add_client(int fd);
void on_client(Client& client, uint32_t events);
void send(Client& client, wire::Type type, const void* a, size_t a_size, const void* b = nullptr, size_t b_size = 0);
void send_failure(Client& client, const Failure& failure);
void send_result(Client& client, const Command& command);
bool has_backlog(const Command& command);
void sweep_clients();

// remover.cc
/// Executes what removes the sandbox in place of the keeper; returns only when that is not possible.
void become_remover();

// state.cc
void write_state();
uint64_t oom_kills();
void append_text_json(Buffer& out, const char* key, const char* data, size_t size);

}  // namespace dsec::guest
