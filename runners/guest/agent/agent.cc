#include "runners/guest/agent/agent.h"

#include <asm/signal.h>
#include <linux/eventpoll.h>
#include <linux/fs.h>
#include <linux/reboot.h>

#include "runners/guest/sys.h"

namespace dsec::guest {

Agent agent;

namespace {

constexpr unsigned kEvents = 64;

// Tags of what is no stream.
char port_tag, listener_tag, signals_tag, connections_tag, datagrams_tag;
// Flows of datagrams are looked at so often.
constexpr long kFlowsEvery = 2000;

bool open_epoll(Failure& failure) {
  const long epoll = sys(__NR_epoll_create1, O_CLOEXEC);
  if (epoll < 0) return failure.set("make an epoll", "", epoll), false;
  agent.epoll = static_cast<int>(epoll);
  const uint64_t all = ~uint64_t{0}, wanted = uint64_t{1} << (SIGCHLD - 1);
  sys(__NR_rt_sigprocmask, SIG_SETMASK, &all, nullptr, sizeof all);
  const long signals = sys(__NR_signalfd4, -1, &wanted, sizeof wanted, O_CLOEXEC | O_NONBLOCK);
  if (signals < 0) return failure.set("make a signalfd", "", signals), false;
  agent.signals = static_cast<int>(signals);
  epoll_event event = {EPOLLIN, reinterpret_cast<uint64_t>(&signals_tag)};
  sys(__NR_epoll_ctl, agent.epoll, EPOLL_CTL_ADD, agent.signals, &event);
  return true;
}

// With it everything in the sandbox has ended, and its clients have heard of that.
void on_keeper_end(int status) {
  agent.keeper = 0;
  if (agent.state == channel::AgentState::Ended) return;
  agent.state = channel::AgentState::Ended;
  static constexpr char kEnded[] = "the sandbox has ended", kKilled[] = "the keeper of the sandbox was killed";
  const char* const reason = status ? kKilled : kEnded;
  Buffer text = {};
  wire::Writer<Buffer>(text).str(reason, strlen(reason));
  send_control(channel::Type::Ended, 0, text.data, text.size);
  text.clear();
}

void reap_children() {
  char info[128];
  while (sys(__NR_read, agent.signals, info, sizeof info) > 0) {
  }
  int status = 0;
  for (long pid; (pid = sys(__NR_wait4, -1, &status, 1 /* WNOHANG */, nullptr)) > 0;) {
    if (reap_service(static_cast<int>(pid), status)) continue;
    if (pid == agent.keeper) on_keeper_end(status);
  }
}

void dispatch(const epoll_event& event) {
  void* const tag = reinterpret_cast<void*>(event.data);
  if (tag == &signals_tag) return reap_children();
  if (tag == &port_tag) return on_channel(event.events);
  if (tag == &listener_tag) return accept_channel();
  if (tag == &connections_tag) return accept_connections();
  if (tag == &datagrams_tag) return take_datagrams();
  on_stream(*static_cast<Stream*>(tag), event.events);
}

void watch_egress() {
  Egress& egress = agent.egress;
  if (egress.listener.fd <= 0) return;
  watch(egress.listener, may_accept() ? EPOLLIN : 0, &connections_tag);
  watch(egress.datagrams, may_take_datagrams() ? EPOLLIN : 0, &datagrams_tag);
}

void run_loop() {
  for (;;) {
    watch(agent.port, EPOLLIN | (agent.writable ? 0 : EPOLLOUT), &port_tag);
    watch(agent.listener, EPOLLIN, &listener_tag);
    watch_egress();
    epoll_event events[kEvents];
    long wait = until_asking();
    if (agent.egress.flow_count && (wait < 0 || wait > kFlowsEvery)) wait = kFlowsEvery;
    const long count = sys(__NR_epoll_pwait, agent.epoll, events, kEvents, wait, nullptr, 8);
    for (long i = 0; i < count; ++i) dispatch(events[i]);
    // Not in between: an event may belong to a stream that another has just ended.
    pump();
    if (agent.state == channel::AgentState::Quiesced) continue;
    sweep_streams();
    if (agent.egress.flow_count) end_idle_flows();
    ask_for_cold_memory();
    pump();
  }
}

// The kernel has no other way to be told that it is the last: what is mounted may still be used.
void let_go_of_disk() {
  if (agent.frozen_disk) sys(__NR_ioctl, agent.disk, FITHAW, 0);
  constexpr int kReadOnlyRemount = 32 | 1;  // MS_REMOUNT | MS_RDONLY
  sys(__NR_sync);
  if (agent.configured && !agent.service) mount_at(nullptr, "/disk", nullptr, kReadOnlyRemount, nullptr);
}

// As systemd takes it: the first of its real-time signals from 4 on is for poweroff.target. Nothing else of the system
// is known here; dsec ends a machine that stays.
[[noreturn]] void turn_off_system() {
  constexpr int kFirstRealTime = 34;
  sys(__NR_kill, 1, kFirstRealTime + 4);
  exit_now(0);
}

}  // namespace

void end_machine() {
  if (agent.keeper || agent.init) {
    write_group_file(agent.parent_group, "cgroup.kill", "1");
    if (agent.keeper) sys(__NR_kill, agent.keeper, SIGKILL);
    int status = 0;
    for (unsigned waited = 0; waited < 2000; ++waited, sleep_ms(1)) {
      while (sys(__NR_wait4, -1, &status, 1, nullptr) > 0) {
      }
      if (read_group_number(agent.parent_group, "cgroup.events", "populated") == 0) break;
    }
  }
  let_go_of_disk();
  if (agent.service) turn_off_system();
  for (;;) {
    sys(__NR_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_RESTART, nullptr);
    sleep_ms(1000);
  }
}

void run_service() {
  agent.modules = agent.disk = agent.network = agent.root = -1;
  agent.port.fd = agent.listener.fd = -1;
  Failure failure = {};
  if (!boot_service(failure) || !open_epoll(failure) || !open_channel(failure)) {
    complain(failure.step, failure.object, -failure.error);
    exit_now(1);
  }
  if (await_dsec()) run_loop();
  exit_now(0);
}

void run_agent() {
  agent.modules = agent.disk = agent.network = agent.root = -1;
  agent.port.fd = agent.listener.fd = -1;
  Failure failure = {};
  if (!boot(failure) || !open_epoll(failure) || !open_channel(failure)) {
    complain(failure.step, failure.object, -failure.error);
    end_machine();
  }
  if (!await_dsec()) {
    complain("go on, as nobody is at the channel", "", 0);
    end_machine();
  }
  run_loop();
  end_machine();
}

}  // namespace dsec::guest
