#include "runners/guest/keeper.h"

#include <asm/signal.h>
#include <linux/eventpoll.h>
#include <linux/prctl.h>
#include <linux/resource.h>

#include "runners/guest/machine_memory.h"
#include "runners/guest/setup.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

namespace dsec::guest {

Keeper keeper;

void watch(Source& source, uint32_t events) {
  if (source.events == events) return;
  epoll_event event = {events, reinterpret_cast<uint64_t>(&source)};
  sys(__NR_epoll_ctl, keeper.epoll, source.events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, source.fd, &event);
  source.events = events;
}

void unwatch(Source& source) {
  if (!source.events) return;
  sys(__NR_epoll_ctl, keeper.epoll, EPOLL_CTL_DEL, source.fd, nullptr);
  source.events = 0;
}

namespace {
constexpr uint64_t kPowerOffTimeout = 6'000'000;
void kill_sandbox();
}  // namespace

void begin_end(const char* state, const char* reason) {
  if (keeper.ending) return;
  // What is frozen could not write its disk out.
  if (keeper.config.is_machine()) wake();
  keeper.ending = true;
  keeper.state = state;
  keeper.reason = reason;
  set_idle(false);
  // What nobody will look at again needs no disk that is whole.
  const bool disk_matters = !keeper.config.remover.count && !keeper.at_once && !keeper.init_ended;
  if (keeper.config.is_machine() && disk_matters && power_off_machine()) {
    keeper.kill_us = monotonic_us() + kPowerOffTimeout;
    return;
  }
  kill_sandbox();
}

namespace {
void kill_group() {
  const long fd = open_at(keeper.config.cgroup_fd, "cgroup.kill", O_WRONLY | O_CLOEXEC);
  if (fd >= 0) {
    write_fd(static_cast<int>(fd), "1", 1);
    close_fd(static_cast<int>(fd));
  }
}

void kill_sandbox() {
  kill_group();
  // That of the machine goes on without us.
  if (keeper.config.joins()) keeper.init_ended = true;
  // With PID 1 the kernel ends everything in its pid namespace, whatever cgroup it is in.
  if (!keeper.init_ended) sys(__NR_kill, keeper.init_pid, SIGKILL);
}
}  // namespace

bool complete_sandbox(Failure& failure) {
  if (keeper.complete || !(keeper.config.flags & wire::kStartLater)) return true;
  return keeper.complete = add_late_mounts(keeper.config, keeper.init_pidfd, failure);
}

void note_activity() { keeper.idle_since_us = monotonic_us(); }

bool is_busy() {
  if (keeper.config.is_machine() && !keeper.machine_began) return true;
  if (keeper.running_count || has_open_operations() || is_quiesced()) return true;
  for (const Client* client = keeper.clients; client; client = client->next) {
    if (client->command) return true;
  }
  return false;
}

namespace {

constexpr unsigned kStartFd = 3;

// What the sandbox inherits of us must not depend on who called dsec. A hard limit below the wanted one stays: raising
// it needs a right that dsec may not have.
bool set_limits(Failure& failure) {
  for (uint32_t i = 0; i < keeper.config.resource_count; ++i) {
    const ResourceLimit& wanted = keeper.config.resources[i];
    rlimit64 limit = {};
    sys(__NR_prlimit64, 0, wanted.resource, nullptr, &limit);
    if (wanted.hard < limit.rlim_max) limit.rlim_max = wanted.hard;
    limit.rlim_cur = wanted.soft < limit.rlim_max ? wanted.soft : limit.rlim_max;
    const long done = sys(__NR_prlimit64, 0, wanted.resource, &limit, nullptr);
    if (done < 0) return failure.set("set a resource limit", "", done), false;
  }
  return true;
}

// Before dsec says for which sandbox.
void become_keeper() {
  sys(__NR_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
  sys(__NR_prctl, PR_SET_NAME, "dsec-keeper", 0, 0, 0);
  sys(__NR_setsid);
  sys(__NR_umask, 077);
  const uint64_t blocked = ~uint64_t{0};
  sys(__NR_rt_sigprocmask, SIG_SETMASK, &blocked, nullptr, sizeof blocked);
  // What dsec, or whoever started it, ignores would be ignored by every command. SIGKILL and SIGSTOP refuse, rightly.
  const struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
  } by_default = {};
  for (int signal = 1; signal <= 64; ++signal)
    sys(__NR_rt_sigaction, signal, &by_default, nullptr, sizeof by_default.mask);
  keeper.self_pid = static_cast<int>(sys(__NR_getpid));
}

bool take_charge(Failure& failure) {
  keeper.directory = keeper.config.directory_fd;
  if (!set_limits(failure)) return false;
  // Everything that dsec must know of us it finds by this lock: whether we live, and our pid (F_GETLK).
  struct {
    short type, whence;
    long start, length;
    int pid;
  } lock = {F_RDLCK, 0, 0, 1, 0};
  long done = sys(__NR_fcntl, keeper.directory, F_SETLK, &lock);
  if (done < 0) return failure.set("lock", keeper.config.directory.data, done), false;
  if (keeper.config.remover.count) {
    const long origin = open_at(0, "/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (origin < 0) return failure.set("open", "/proc/self/ns/mnt", origin), false;
    keeper.origin_namespace = static_cast<int>(origin);
  }
  if (keeper.config.flags & wire::kStartEgress) {
    const long origin = open_at(0, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (origin < 0) return failure.set("open", "/proc/self/ns/net", origin), false;
    keeper.origin_network = static_cast<int>(origin);
  }
  done = sys(__NR_setns, keeper.config.namespace_fd, CLONE_NEWNS);
  if (done < 0) return failure.set("join the mount namespace for keepers", "", done), false;
  close_fd(keeper.config.namespace_fd);
  // All that is cloned from here on has it from us.
  if (keeper.config.flags & wire::kStartCoreScheduling) {
    constexpr int kScope = 1;  // our threads
    done = sys(__NR_prctl, PR_SCHED_CORE, PR_SCHED_CORE_CREATE, 0, kScope, 0);
    if (done < 0) return failure.set("keep other sandboxes off its cores", "", done), false;
  }
  return true;
}

bool open_channels(Failure& failure) {
  const long epoll = sys(__NR_epoll_create1, O_CLOEXEC);
  if (epoll < 0) return failure.set("make an epoll", "", epoll), false;
  keeper.epoll = static_cast<int>(epoll);
  const long listener = listen_in(keeper.directory, wire::kSocketName);
  if (listener < 0) return failure.set("listen at", wire::kSocketName, listener), false;
  keeper.listener = {SourceKind::Listener, static_cast<int>(listener), 0, nullptr};
  watch(keeper.listener, EPOLLIN);
  const uint64_t wanted = uint64_t{1} << (SIGCHLD - 1) | uint64_t{1} << (SIGTERM - 1);
  const long signals = sys(__NR_signalfd4, -1, &wanted, sizeof wanted, O_CLOEXEC | O_NONBLOCK);
  if (signals < 0) return failure.set("make a signalfd", "", signals), false;
  keeper.signals = {SourceKind::Signals, static_cast<int>(signals), 0, nullptr};
  watch(keeper.signals, EPOLLIN);
  keeper.spool_directory = {keeper.directory, -1};
  return true;
}

// Next to PID 1 on its way: what we need ourselves, and the root from dsec.
bool prepare_beside_init(Failure& failure) {
  if (!open_channels(failure)) return false;
  Buffer frame = {};
  int fds[kMaxDescriptors];
  unsigned count = 0;
  bool ok = receive_frame(kStartFd, wire::Type::Root, frame, fds, count);
  if (ok) {
    wire::Reader reader(frame.data + sizeof(wire::FrameHeader), frame.size - sizeof(wire::FrameHeader));
    ok = keeper.config.read_root(reader, fds, count);
  }
  if (!ok) failure.set("read the request of dsec", "", -EPROTO);
  return ok;
}

// Its PID 1 is there already, and outlives us.
bool join_machine(Failure& failure) {
  if (!prepare_beside_init(failure)) return false;
  const long pidfd = sys(__NR_pidfd_open, 1, 0);
  if (pidfd < 0) return failure.set("open a pidfd of", "PID 1", pidfd), false;
  keeper.init_pid = 1;
  keeper.init_pidfd = static_cast<int>(pidfd);
  close_fd(keeper.config.program_fd);
  return true;
}

// What the sandbox of a machine sends out has a socket here for each connection.
void allow_many_descriptors() {
  rlimit64 limit = {};
  sys(__NR_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit);
  limit.rlim_cur = limit.rlim_max;
  sys(__NR_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
}

// A socket, since both ends are read and written.
bool make_console(int& ours, Failure& failure) {
  int ends[2];
  const long made = sys(__NR_socketpair, 1 /* AF_UNIX */, 1 /* SOCK_STREAM */ | O_CLOEXEC, 0, ends);
  if (made < 0) return failure.set("make the console of", "the machine", made), false;
  ours = ends[0];
  keeper.config.console_fd = ends[1];
  return true;
}

bool start_sandbox(Failure& failure) {
  if (keeper.config.joins()) return join_machine(failure);
  int ours = -1;
  if (keeper.config.flags & wire::kStartConsole && !make_console(ours, failure)) return false;
  int alive[2];
  const long piped = sys(__NR_pipe2, alive, O_CLOEXEC);
  if (piped < 0) return failure.set("make a pipe", "", piped), false;
  const long self = sys(__NR_pidfd_open, keeper.self_pid, 0);
  if (self < 0) return failure.set("open a pidfd of", "the keeper", self), false;
  if (!begin_init(keeper.config, alive[0], static_cast<int>(self), failure)) return false;
  keeper.init_pid = finish_init(prepare_beside_init(failure), failure);
  if (keeper.init_pid < 0) return false;
  close_fd(static_cast<int>(self));
  close_fd(alive[0]);
  // alive[1] stays open for as long as we live.
  const long pidfd = sys(__NR_pidfd_open, keeper.init_pid, 0);
  if (pidfd < 0) return failure.set("open a pidfd of", "PID 1", pidfd), false;
  keeper.init_pidfd = static_cast<int>(pidfd);
  const Config& config = keeper.config;
  for (uint32_t i = 0; i < config.mount_count; ++i)
    if (config.mounts[i].fd >= 0) close_fd(config.mounts[i].fd);
  close_fd(config.program_fd);
  if (config.machine_error_fd >= 0) close_fd(config.machine_error_fd);
  if (ours >= 0) {
    close_fd(config.console_fd);
    open_console(ours);
  }
  if (config.user_namespace_fd >= 0) close_fd(config.user_namespace_fd);
  if (config.network_fd >= 0 && !keeper.origin_network) close_fd(config.network_fd);
  if (keeper.origin_network) allow_many_descriptors();
  return true;
}

void on_signals() {
  struct {
    uint32_t signal;
    char rest[124];
  } info;
  while (sys(__NR_read, keeper.signals.fd, &info, sizeof info) == static_cast<long>(sizeof info)) {
    if (info.signal == SIGTERM) begin_end("stopped", "its keeper was asked to end it");
  }
  int status = 0;
  for (long pid; (pid = sys(__NR_wait4, -1, &status, 1 /* WNOHANG */, nullptr)) > 0;) {
    if (reap_flush(static_cast<int>(pid), status)) continue;
    if (pid == keeper.init_pid) {
      keeper.init_ended = true;
      keeper.turned_off = keeper.config.flags & wire::kStartConsole && status == 0 && !keeper.ending;
      if (keeper.turned_off) begin_end("stopped", "its system turned it off");
      begin_end("failed", keeper.config.is_machine() ? "its machine ended" : "its PID 1 was killed");
    } else if (!reap_reclaimer(static_cast<int>(pid))) {
      reap(static_cast<int>(pid), status);
    }
  }
}

uint64_t earlier(uint64_t left, uint64_t right) { return left && (!right || left < right) ? left : right; }

// Milliseconds for epoll_wait(2), -1: no end.
int until_next_deadline(uint64_t now) {
  uint64_t next = earlier(earlier(earlier(keeper.end_us, keeper.stop_us), keeper.leave_us), next_pause_deadline());
  if (keeper.ending) next = earlier(keeper.kill_us, 0);
  if (keeper.config.idle_ms && !is_busy()) next = earlier(next, keeper.idle_since_us + keeper.config.idle_ms * 1000);
  for (const Command* command = keeper.commands; command; command = command->next) {
    if (!command->ended) next = earlier(earlier(next, command->deadline_us), command->gather_us);
  }
  if (keeper.sessions) next = earlier(next, next_question(now));
  next = earlier(next, next_look(now));
  if (keeper.stop_us) next = earlier(next, now + 50'000);
  next = earlier(next, flush_due());
  if (!next) return -1;
  if (next <= now) return 0;
  const uint64_t wait = (next - now + 999) / 1000;
  return wait > 1u << 30 ? 1 << 30 : static_cast<int>(wait);
}

void check_deadlines() {
  const uint64_t now = monotonic_us();
  check_timeouts(now);
  check_flush(now);
  if (keeper.kill_us && now >= keeper.kill_us) {
    keeper.kill_us = 0;
    kill_sandbox();
  }
  if (keeper.ending) return;
  if (keeper.leave_us && now >= keeper.leave_us) return begin_end("failed", keeper.leave_reason);
  if (keeper.end_us && now >= keeper.end_us) return begin_end("stopped", "its lifetime ended");
  if (keeper.config.idle_ms && !is_busy() && now >= keeper.idle_since_us + keeper.config.idle_ms * 1000) {
    return begin_end("stopped", "it was idle");
  }
  check_pause(now);
  if (!keeper.stop_us) return;
  remove_lingering();
  if (now >= keeper.stop_us || (!keeper.running_count && !keeper.lingering_count)) {
    begin_end("stopped", "it was stopped");
  }
}

void dispatch(Source& source, uint32_t events) {
  // Something earlier in the same batch may have closed it.
  if (source.fd < 0 || !source.events) return;
  switch (source.kind) {
    case SourceKind::Listener:
      return accept_client();
    case SourceKind::Signals:
      return on_signals();
    case SourceKind::Client:
      return on_client(*static_cast<Client*>(source.owner), events);
    case SourceKind::Output:
      return on_output(*static_cast<Command*>(source.owner), 0);
    case SourceKind::Error:
      return on_output(*static_cast<Command*>(source.owner), 1);
    case SourceKind::Input:
      return on_input_room(*static_cast<Command*>(source.owner));
    case SourceKind::Control:
      return on_control(*static_cast<Session*>(source.owner));
    case SourceKind::Freezer:
      return on_freezer_event();
    case SourceKind::Channel:
      return on_machine_channel(events);
    case SourceKind::Relay:
      return on_relay(*static_cast<GuestStream*>(source.owner), events);
    case SourceKind::Monitor:
      return on_monitor(events);
    case SourceKind::Memory:
      return on_memory_request(events);
  }
}

void resume_readers() {
  if (keeper.config.is_machine()) resume_streams();
  for (Command* command = keeper.commands; command; command = command->next) {
    if (command->gather_us && command->gather_us > monotonic_us()) continue;
    command->gather_us = 0;
    if (!command->running || command->entry || has_backlog(*command)) continue;
    if (command->output.fd >= 0 && !command->output.events) watch(command->output, EPOLLIN);
    if (command->error.fd >= 0 && !command->error.events) watch(command->error, EPOLLIN);
  }
}

void run_loop() {
  while (!keeper.init_ended) {
    epoll_event events[16];
    const long count = sys(__NR_epoll_pwait, keeper.epoll, events, 16, until_next_deadline(monotonic_us()), nullptr, 8);
    note_entered();
    for (long i = 0; i < count; ++i) dispatch(*reinterpret_cast<Source*>(events[i].data), events[i].events);
    check_deadlines();
    resume_readers();
    sweep_commands();
    sweep_clients();
    if (keeper.lingering_count && count > 0) remove_lingering();
  }
}

// PID 1 is gone, and with it every process of its namespace.
void remove_cgroups() {
  const Config& config = keeper.config;
  // The kernel may count a process that is dead for a moment longer.
  for (int attempt = 0; attempt < 2000; ++attempt) {
    remove_lingering();
    const long done = sys(__NR_unlinkat, config.cgroup_parent_fd, config.cgroup_name.data, 0x200);
    if (done == 0 || done == -ENOENT) break;
    const struct { long seconds, nanoseconds; } pause = {0, 100'000};
    sys(__NR_nanosleep, &pause, nullptr);
  }
  for (uint32_t i = 0; i < config.limit_count; ++i) {
    sys(__NR_unlinkat, config.limits[i].parent, config.limits[i].name.data, 0x200);
  }
}

// What clients have not read yet may take a moment; whoever does not read loses it.
void say_farewell() {
  for (Client* client = keeper.clients; client; client = client->next) {
    if (client->waits_for_end) send(*client, wire::Type::Ended, nullptr, 0);
  }
  const uint64_t latest = monotonic_us() + 2'000'000;
  for (;;) {
    bool waiting = false;
    for (Client* client = keeper.clients; client; client = client->next) waiting |= !client->dead && client->out.size;
    const uint64_t now = monotonic_us();
    if (!waiting || now >= latest) return;
    epoll_event events[16];
    const long count = sys(__NR_epoll_pwait, keeper.epoll, events, 16, (latest - now) / 1000 + 1, nullptr, 8);
    for (long i = 0; i < count; ++i) {
      Source& source = *reinterpret_cast<Source*>(events[i].data);
      if (source.kind == SourceKind::Client) {
        dispatch(source, events[i].events);
      } else {
        unwatch(source);
      }
    }
  }
}

void finish() {
  finish_commands();
  finish_trajectory();
  // Now also those are open whose beginning was on its way to the disk.
  end_stops();
  finish_trajectory();
  // Those that were killed on their way, too.
  int status = 0;
  while (sys(__NR_wait4, -1, &status, 1, nullptr) > 0) {
  }
  keeper.ended_wall_us = wall_time_us();
  // Its filesystems end here, and not while whoever waits for our end removes what they lie on.
  close_fd(keeper.config.root_fd);
  // What serves the disk of a machine is in no namespace of it.
  if (keeper.config.is_machine()) kill_group();
  remove_cgroups();
  write_state();
  sys(__NR_unlinkat, keeper.directory, wire::kSocketName, 0);
  say_farewell();
  if (keeper.config.remover.count && keeper.main_record.size && !keeper.attended) become_remover();
}

}  // namespace

int run_keeper(char* shown) {
  Buffer frame = {};
  int fds[kMaxDescriptors];
  unsigned count = 0;
  sys(__NR_close_range, kStartFd + 1, ~0u, 0);
  become_keeper();
  if (!receive_frame(kStartFd, wire::Type::Start, frame, fds, count)) return 1;
  sys(__NR_fcntl, kStartFd, F_SETFD, 1 /* FD_CLOEXEC */);
  wire::Reader reader(frame.data + sizeof(wire::FrameHeader), frame.size - sizeof(wire::FrameHeader));
  Failure failure = {};
  keeper.commands_log = keeper.listener.fd = -1;
  keeper.state = "running";
  bool ok = keeper.config.read_start(reader, fds, count);
  if (!ok) failure.set("read the request of dsec", "", -EPROTO);
  // One that was started ahead did not know it.
  const Text& directory = keeper.config.directory;
  if (ok && strlen(shown) == directory.size) memcpy(shown, directory.data, directory.size);
  ok = ok && take_charge(failure) && open_trajectory(failure) && start_sandbox(failure);
  Client* const creator = keeper.epoll > 0 ? add_client(kStartFd) : nullptr;
  if (!ok) {
    if (!creator) {
      Client alone = {};
      alone.source = {SourceKind::Client, kStartFd, 1, &alone};
      send_failure(alone, failure);
      return 1;
    }
    send_failure(*creator, failure);
    if (keeper.init_pid > 0 && !keeper.config.joins()) sys(__NR_kill, keeper.init_pid, SIGKILL);
    return 1;
  }
  sys(__NR_fcntl, kStartFd, F_SETFL, O_RDWR | O_NONBLOCK);
  keeper.creator = creator;
  keeper.started_wall_us = wall_time_us();
  const uint64_t now = monotonic_us();
  keeper.began_us = keeper.idle_since_us = now;
  // Of a machine they count from when its guest is ready.
  if (keeper.config.lifetime_ms && !keeper.config.is_machine()) keeper.end_us = now + keeper.config.lifetime_ms * 1000;
  write_state();
  const uint32_t pids[] = {static_cast<uint32_t>(keeper.self_pid), static_cast<uint32_t>(keeper.init_pid)};
  send(*creator, wire::Type::Started, pids, sizeof pids);
  run_loop();
  finish();
  return 0;
}

}  // namespace dsec::guest
