#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

// What the guest's kernel keeps of files that nobody reads any more is memory that the host lacks, and nothing presses
// that kernel: it has enough. So it is asked for the coldest of it, a little at a time, for as long as hardly any of
// that is read again. What becomes free so goes back to the host by the balloon.

namespace dsec::guest {
namespace {

constexpr uint32_t kEvery = 10, kMostSeconds = 86'400;
constexpr uint64_t kPage = 4096;
// Less is not worth asking for.
constexpr uint64_t kLeastCached = 8ull << 20;
// Of what is cached, each time; and of what was asked for, that may be read again before the next time is left out.
constexpr uint64_t kPart = 16, kReadAgain = 8;

struct Asked {
  uint64_t every_us;  ///< 0: never
  uint64_t next_us;
  uint64_t bytes;     ///< the last time
  uint64_t refaults;  ///< pages that were read again, since the kernel began to count
} asked;

}  // namespace

void begin_asking() {
  uint32_t seconds = kEvery;
  if (const char* text = kernel_argument("dsec.reclaim")) {
    for (seconds = 0; *text >= '0' && *text <= '9' && seconds <= kMostSeconds; ++text)
      seconds = seconds * 10 + static_cast<uint32_t>(*text - '0');
  }
  // Kernels before 5.19 cannot be asked.
  const long file = open_at(agent.group, "memory.reclaim", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  close_fd(static_cast<int>(file));
  asked.every_us = seconds * 1'000'000ull;
  asked.next_us = monotonic_us() + asked.every_us;
}

long until_asking() {
  if (!asked.every_us || agent.state != channel::AgentState::Running) return -1;
  const uint64_t now = monotonic_us();
  return now >= asked.next_us ? 0 : static_cast<long>((asked.next_us - now) / 1000 + 1);
}

void ask_for_cold_memory() {
  if (until_asking() != 0) return;
  asked.next_us = monotonic_us() + asked.every_us;
  if (agent.rests) return;
  const uint64_t cached = read_group_number(agent.group, "memory.stat", "file");
  const uint64_t refaults = read_group_number(agent.group, "memory.stat", "workingset_refault_file");
  const uint64_t again = (refaults - asked.refaults) * kPage, before = asked.bytes;
  asked.refaults = refaults;
  asked.bytes = 0;
  if (cached < kLeastCached || again > (before ? before : cached / kPart) / kReadAgain) return;
  asked.bytes = cached / kPart;
  Buffer amount = {};
  amount.append_number(static_cast<int64_t>(asked.bytes));
  amount.append("", 1);
  write_group_file(agent.group, "memory.reclaim", amount.data);
  amount.clear();
}

}  // namespace dsec::guest
