#include <linux/fs.h>
#include <linux/random.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr unsigned kPause = 2, kFreezeWait = 10'000;

// The group above the keeper's own, so that what the keeper has frozen stays so when this thaws.
bool freeze_processes(Failure& failure) {
  const long put = write_group_file(agent.parent_group, "cgroup.freeze", "1");
  if (put < 0) return failure.set("freeze", "the sandbox", put), false;
  for (unsigned waited = 0; waited < kFreezeWait; waited += kPause, sleep_ms(kPause))
    if (read_group_number(agent.parent_group, "cgroup.events", "frozen") == 1) return true;
  write_group_file(agent.parent_group, "cgroup.freeze", "0");
  return failure.set("freeze", "the sandbox in 10 seconds", 0), false;
}

bool freeze_disk(Failure& failure) {
  if (agent.disk < 0) return true;
  const long done = sys(__NR_ioctl, agent.disk, FIFREEZE, 0);
  if (done < 0) return failure.set("freeze", "the writable disk", done), false;
  agent.frozen_disk = true;
  return true;
}

// Of a file that is bound into the sandbox: its content changes, the file stays.
bool write_line(const char* path, const Text& text) {
  const long file = open_at(-100, path, O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (file < 0) return false;
  const bool whole = write_fd(static_cast<int>(file), text.data, text.size) == static_cast<long>(text.size) &&
                     write_fd(static_cast<int>(file), "\n", 1) == 1;
  close_fd(static_cast<int>(file));
  return whole;
}

long thaw_disk() {
  if (!agent.frozen_disk) return 0;
  const long done = sys(__NR_ioctl, agent.disk, FITHAW, 0);
  if (done >= 0) agent.frozen_disk = false;
  return done;
}

}  // namespace

void set_clock(uint64_t wall_us) {
  constexpr uint64_t kYear2001 = 1'000'000'000'000'000;  // before it there was no dsec: the field has no time
  if (wall_us < kYear2001) return;
  const struct { uint64_t seconds, nanoseconds; } now = {wall_us / 1'000'000, wall_us % 1'000'000 * 1000};
  sys(__NR_clock_settime, 0 /* CLOCK_REALTIME */, &now);
}

// Two guests of one snapshot would otherwise draw the same numbers.
void stir_random(const Text& bytes) {
  constexpr uint32_t kMost = 256;
  if (!bytes.size) return;
  struct {
    int bits, size;
    char data[kMost];
  } pool = {};
  const uint32_t count = bytes.size < kMost ? bytes.size : kMost;
  pool.bits = static_cast<int>(count * 8);
  pool.size = static_cast<int>(count);
  memcpy(pool.data, bytes.data, count);
  const long device = open_at(-100, "/dev/urandom", O_WRONLY | O_CLOEXEC);
  if (device < 0) return;
  sys(__NR_ioctl, device, RNDADDENTROPY, &pool);
  sys(__NR_ioctl, device, RNDRESEEDCRNG, 0);
  close_fd(static_cast<int>(device));
}

bool quiesce(Failure& failure) {
  if (agent.state == channel::AgentState::Quiesced) return true;
  if (agent.state == channel::AgentState::Waiting && !agent.configured) {
    // Nothing runs yet, and nothing is mounted.
    agent.state = channel::AgentState::Quiesced;
    return true;
  }
  if (agent.state != channel::AgentState::Running) return failure.set("quiesce", "what does not run", 0), false;
  if (!freeze_processes(failure)) return false;
  if (!freeze_disk(failure)) {
    write_group_file(agent.parent_group, "cgroup.freeze", "0");
    return false;
  }
  agent.state = channel::AgentState::Quiesced;
  rest_streams();
  return true;
}

bool thaw(uint64_t wall_us, Failure& failure) {
  if (agent.state != channel::AgentState::Quiesced) return failure.set("thaw", "what is not frozen", 0), false;
  // Before anything inside looks at it.
  set_clock(wall_us);
  if (!agent.configured) {
    agent.state = channel::AgentState::Waiting;
    return true;
  }
  long done = thaw_disk();
  if (done >= 0) done = write_group_file(agent.parent_group, "cgroup.freeze", "0");
  if (done < 0) return failure.set("thaw", "the sandbox", done), false;
  agent.state = channel::AgentState::Running;
  wake_streams();
  return true;
}

// What stands still needs no cache, and what becomes free in whole blocks is told to the VMM, which gives it back: also
// blocks that were free in parts.
bool rest(Failure& failure) {
  if (agent.state != channel::AgentState::Running) return failure.set("rest", "what does not run", 0), false;
  if (!freeze_processes(failure)) return false;
  agent.rests = true;
  if (agent.disk >= 0) sys(__NR_syncfs, agent.disk);
  write_group_file(-100, "/proc/sys/vm/drop_caches", "3");
  write_group_file(-100, "/proc/sys/vm/compact_memory", "1");
  return true;
}

void go_on() {
  if (!agent.rests) return;
  agent.rests = false;
  write_group_file(agent.parent_group, "cgroup.freeze", "0");
}

bool renew(const Text& machine_id, const Text& hostname, const Text& random, const Strings& environment,
           Failure& failure) {
  stir_random(random);
  const long named = machine_id.size ? set_machine_id(machine_id) : 0;
  if (named < 0) return failure.set("renew", "the machine id", named), false;
  if (environment.count) {
    Buffer text = {};
    wire::Writer<Buffer> writer(text);
    writer.u32(environment.count);
    for (uint32_t i = 0; i < environment.count; ++i) writer.str(environment.items[i], strlen(environment.items[i]));
    const long told = tell_keeper(wire::Type::Environment, text);
    text.clear();
    if (told < 0) return failure.set("renew", "the environment", told), false;
  }
  if (!hostname.size) return true;
  if (agent.hostname_file) {
    char path[32] = "/files/";
    write_number(path + strlen(path), agent.hostname_file);
    if (!write_line(path, hostname)) return failure.set("renew", "/etc/hostname", -EIO), false;
  }
  const long own = open_at(-100, "/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
  const long init = sys(__NR_pidfd_open, agent.init, 0);
  long done = own < 0 ? own : init < 0 ? init : sys(__NR_setns, init, CLONE_NEWUTS);
  if (done >= 0) done = sys(__NR_sethostname, hostname.data, hostname.size);
  if (own >= 0) sys(__NR_setns, own, CLONE_NEWUTS), close_fd(static_cast<int>(own));
  if (init >= 0) close_fd(static_cast<int>(init));
  if (done < 0) return failure.set("renew", "the host name", done), false;
  return true;
}

}  // namespace dsec::guest
