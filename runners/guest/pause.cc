#include <asm/signal.h>
#include <linux/eventpoll.h>

#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

// A pause ends with any operation; a hold ends with the connection that asked for it, so that no client can leave a
// sandbox frozen by dying. What enters a frozen sandbox stands still before its first instruction, and goes on with the
// others.
namespace dsec::guest {
namespace {

using Freezer = Pause::Freezer;

// A process in an uninterruptible wait (a dead network filesystem) does not freeze before that is over.
constexpr uint64_t kFreezeTimeout = 5'000'000;
// A guest that does not come to rest in time is frozen as it is.
constexpr uint64_t kRestTimeout = 5'000'000;
// Its kernel tells of free memory two seconds after that became free (PAGE_REPORTING_DELAY), piece by piece.
constexpr uint64_t kReporting = 2'500'000;

long write_text(int directory, const char* file, const char* text, size_t size) {
  const long fd = open_at(directory, file, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return fd;
  const long done = write_fd(static_cast<int>(fd), text, size);
  close_fd(static_cast<int>(fd));
  return done < 0 ? done : 0;
}

int64_t read_number(int directory, const char* file) {
  const long fd = open_at(directory, file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fd;
  char text[32];
  const long size = read_fd(static_cast<int>(fd), text, sizeof text);
  close_fd(static_cast<int>(fd));
  if (size <= 0 || text[0] < '0' || text[0] > '9') return -EINVAL;
  int64_t value = 0;
  for (long i = 0; i < size && text[i] >= '0' && text[i] <= '9'; ++i) value = value * 10 + (text[i] - '0');
  return value;
}

struct MemoryGroup {
  int directory;  ///< negative: there is none
  bool v2, owned;

  MemoryGroup() : directory(keeper.config.cgroup_fd), v2(true), owned(false) {
    if (usage() >= 0) return;
    v2 = false;
    for (uint32_t i = 0; i < keeper.config.limit_count; ++i) {
      const LimitCgroup& limit = keeper.config.limits[i];
      directory = static_cast<int>(open_at(limit.parent, limit.name.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      owned = directory >= 0;
      if (owned && usage() >= 0) return;
      if (owned) close_fd(directory);
    }
    owned = false;
    directory = -1;
  }
  MemoryGroup(const MemoryGroup&) = delete;
  ~MemoryGroup() {
    if (owned) close_fd(directory);
  }
  int64_t usage() const { return read_number(directory, v2 ? "memory.current" : "memory.usage_in_bytes"); }
};

// A limit of memory allows no swap. What stands still needs no memory, and cannot take more of it.
void allow_swap(const MemoryGroup& group) {
  if (!group.v2 || read_number(group.directory, "memory.swap.max") != 0) return;
  keeper.pause.swaps = write_text(group.directory, "memory.swap.max", "max", 3) == 0;
}

// What is in swap stays there until it is used.
void forbid_swap() {
  if (!keeper.pause.swaps) return;
  keeper.pause.swaps = false;
  const MemoryGroup group;
  // An update may have taken the limit away meanwhile.
  if (group.v2 && read_number(group.directory, "memory.max") >= 0)
    write_text(group.directory, "memory.swap.max", "0", 1);
}

/// A child writes to the group, since the kernel answers only when it has tried everything: meanwhile we must be able
/// to resume, which kills the child.
void start_reclaimer(const MemoryGroup& group) {
  const long file = open_at(group.directory, group.v2 ? "memory.reclaim" : "memory.force_empty", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  Buffer amount = {};
  amount.append_number(group.v2 ? keeper.pause.memory_before : 0);
  const long pid = sys(__NR_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid == 0) {
    // Copies of our sockets would keep them open for those at their other ends.
    sys(__NR_dup3, file, 0, O_CLOEXEC);
    sys(__NR_close_range, 1, ~0u, 0);
    write_fd(0, amount.data, amount.size);
    exit_now(0);
  }
  if (pid > 0) keeper.pause.reclaimer_pid = static_cast<int>(pid);
  amount.clear();
  close_fd(static_cast<int>(file));
}

void answer_pausers() {
  for (Client* client = keeper.clients; client; client = client->next) {
    if (!client->waits_for_pause || client->holds) continue;
    client->waits_for_pause = false;
    send(*client, wire::Type::Done, nullptr, 0);
  }
}

void fail_pausers(const char* step, const char* object, long error) {
  Failure failure = {};
  failure.set(step, object, error);
  for (Client* client = keeper.clients; client; client = client->next) {
    if (!client->waits_for_pause || client->holds) continue;
    client->waits_for_pause = false;
    send_failure(*client, failure);
  }
}

void thaw() {
  Pause& pause = keeper.pause;
  if (pause.reclaimer_pid) sys(__NR_kill, pause.reclaimer_pid, SIGKILL);
  forbid_swap();
  if (pause.freezer == Freezer::Thawed) return;
  if (pause.events.fd >= 0) {
    unwatch(pause.events);
    close_fd(pause.events.fd);
    pause.events.fd = -1;
  }
  if (!keeper.ending) set_idle(true);
  write_text(keeper.config.cgroup_fd, "cgroup.freeze", "0", 1);
  pause.freezer = Freezer::Thawed;
  tell_time();
}

void stop_pausing() {
  Pause& pause = keeper.pause;
  pause.wanted = false;
  if (pause.since_wall_us) {
    pause.since_wall_us = 0;
    keeper.state = "running";
    write_state();
  }
  if (!pause.holds) thaw();
}

// What does not freeze is let go on, also for those who hold it.
void give_up(const char* step, long error) {
  for (Client* client = keeper.clients; client; client = client->next) client->holds = false;
  keeper.pause.holds = 0;
  fail_pausers(step, "the sandbox", error);
  stop_pausing();
  note_activity();
}

void become_paused() {
  Pause& pause = keeper.pause;
  if (!pause.since_wall_us) {
    const MemoryGroup group;
    pause.since_wall_us = wall_time_us();
    keeper.state = "paused";
    write_state();
    if (pause.memory_before > 0) {
      allow_swap(group);
      start_reclaimer(group);
    }
  }
  if (!pause.reclaimer_pid) answer_pausers();
}

void become_frozen() {
  Pause& pause = keeper.pause;
  pause.freezer = Freezer::Frozen;
  unwatch(pause.events);
  close_fd(pause.events.fd);
  pause.events.fd = -1;
  for (Client* client = keeper.clients; client; client = client->next) {
    if (!client->waits_for_pause || !client->holds) continue;
    client->waits_for_pause = false;
    send(*client, wire::Type::Done, nullptr, 0);
  }
  if (pause.wanted) become_paused();
}

void note_memory_before() {
  const MemoryGroup group;
  keeper.pause.memory_before = group.usage();
}

void freeze() {
  Pause& pause = keeper.pause;
  if (pause.freezer == Freezer::Thawed) {
    note_memory_before();
    if (!pause.holds && ask_to_rest()) {
      pause.events.fd = -1;
      pause.freezer = Freezer::Resting;
      pause.give_up_us = monotonic_us() + kRestTimeout;
      return;
    }
  }
  // Who holds it does not wait for memory.
  const bool rested = pause.freezer == Freezer::Resting && (pause.holds || monotonic_us() >= pause.give_up_us);
  if (pause.freezer == Freezer::Thawed || rested) {
    const long events = open_at(keeper.config.cgroup_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (events < 0) return give_up("open cgroup.events of", events);
    pause.events = {SourceKind::Freezer, static_cast<int>(events), 0, nullptr};
    pause.freezer = Freezer::Freezing;
    pause.give_up_us = monotonic_us() + kFreezeTimeout;
    set_idle(false);
    const long written = write_text(keeper.config.cgroup_fd, "cgroup.freeze", "1", 1);
    if (written < 0) return give_up("freeze", written);
    watch(pause.events, EPOLLPRI);
    return on_freezer_event();
  }
  if (pause.freezer == Freezer::Frozen && pause.wanted) become_paused();
}

}  // namespace

void set_idle(bool idle) {
  const Config& config = keeper.config;
  if (!(config.flags & wire::kStartIdle)) return;
  const char* const text = idle ? "1" : "0";
  write_text(config.cgroup_fd, "cpu.idle", text, 1);
  for (uint32_t i = 0; i < config.limit_count; ++i) {
    const long group = open_at(config.limits[i].parent, config.limits[i].name.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (group < 0) continue;
    write_text(static_cast<int>(group), "cpu.idle", text, 1);
    close_fd(static_cast<int>(group));
  }
}

void read_memory(uint64_t& limit, uint64_t& peak) {
  const MemoryGroup group;
  if (group.directory < 0) return;
  const int64_t most = read_number(group.directory, group.v2 ? "memory.max" : "memory.limit_in_bytes");
  const int64_t had = read_number(group.directory, group.v2 ? "memory.peak" : "memory.max_usage_in_bytes");
  // In v1 no limit is a number of whole pages near the largest.
  constexpr int64_t kUnlimited = int64_t{1} << 62;
  limit = most > 0 && most < kUnlimited ? static_cast<uint64_t>(most) : 0;
  peak = had > 0 ? static_cast<uint64_t>(had) : 0;
}

void pause(Client& client) {
  if (is_quiesced()) {
    // Its VMM would not answer who saves it.
    Failure failure = {};
    failure.set("pause", "the sandbox, whose machine is being saved", -EBUSY);
    return send_failure(client, failure);
  }
  client.waits_for_pause = true;
  keeper.pause.wanted = true;
  freeze();
}

void hold(Client& client) {
  if (!client.holds) ++keeper.pause.holds;
  client.holds = true;
  if (keeper.pause.freezer == Freezer::Frozen) return send(client, wire::Type::Done, nullptr, 0);
  client.waits_for_pause = true;
  freeze();
}

void release_hold(Client& client) {
  client.holds = false;
  --keeper.pause.holds;
  if (!keeper.pause.holds && !keeper.pause.wanted && !keeper.ending) thaw();
}

void wake() {
  if (!keeper.pause.wanted || keeper.ending) return;
  fail_pausers("pause", "the sandbox, as another operation came", -EINTR);
  stop_pausing();
  note_activity();
}

void on_freezer_event() {
  if (keeper.pause.freezer != Freezer::Freezing) return;
  char text[256];
  const long size = sys(__NR_pread64, keeper.pause.events.fd, text, sizeof text, 0);
  static constexpr char kFrozen[] = "frozen 1";
  for (long at = 0; at + 8 <= size; ++at) {
    if (memcmp(text + at, kFrozen, 8) == 0) return become_frozen();
  }
}

void on_rest() {
  if (keeper.pause.freezer == Freezer::Resting) keeper.pause.give_up_us = monotonic_us() + kReporting;
}

void check_pause(uint64_t now) {
  Pause& pause = keeper.pause;
  if (pause.freezer == Freezer::Freezing && now >= pause.give_up_us) return give_up("freeze", -ETIMEDOUT);
  if (pause.freezer == Freezer::Resting && now >= pause.give_up_us) return freeze();
  if (const uint64_t due = next_pause_deadline(); due && now >= due && !pause.wanted) {
    pause.wanted = true;
    freeze();
  }
}

uint64_t next_pause_deadline() {
  const Pause& pause = keeper.pause;
  if (keeper.ending) return 0;
  if (pause.freezer == Freezer::Freezing || pause.freezer == Freezer::Resting) return pause.give_up_us;
  if (!keeper.config.idle_pause_ms || pause.wanted || keeper.stop_us || is_busy()) return 0;
  return keeper.idle_since_us + keeper.config.idle_pause_ms * 1000;
}

bool reap_reclaimer(int pid) {
  if (!pid || pid != keeper.pause.reclaimer_pid) return false;
  keeper.pause.reclaimer_pid = 0;
  if (keeper.pause.since_wall_us) answer_pausers();
  return true;
}

}  // namespace dsec::guest
