#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

struct Filesystem {
  long type, block_size;
  unsigned long blocks, free, available, files, free_files;
  int id[2];
  long name_length, fragment_size, flags, spare[4];
};

struct Figures {
  Buffer text;
  uint32_t count;

  void add(channel::Figure figure, uint64_t value) {
    wire::Writer<Buffer>(text).u32(static_cast<uint32_t>(figure)).u64(value);
    ++count;
  }
};

uint64_t number_at(const char* text) {
  while (*text == ' ' || *text == '\t') ++text;
  uint64_t value = 0;
  for (; *text >= '0' && *text <= '9'; ++text) value = value * 10 + static_cast<uint64_t>(*text - '0');
  return value;
}

// The number behind `key`, at the beginning of a line; of a file without keys (`key` empty), the first.
bool find_number(const Buffer& text, const char* key, uint64_t& value) {
  for (const char* at = text.data; at && *at;) {
    if (begins_with(at, key)) {
      const char* const behind = at + strlen(key);
      const bool whole = !*key || *behind == ' ' || *behind == ':';
      if (whole) return value = number_at(*behind == ':' ? behind + 1 : behind), true;
    }
    while (*at && *at != '\n') ++at;
    if (*at) ++at;
  }
  return false;
}

// Kernels lack some files; what is missing is not told, rather than told as 0.
void add_from(Figures& figures, channel::Figure figure, int directory, const char* path, const char* key,
              uint64_t unit = 1) {
  Buffer text = {};
  uint64_t value = 0;
  if (read_small(directory, path, text) && text.size && find_number(text, key, value))
    figures.add(figure, value * unit);
  text.clear();
}

}  // namespace

long write_group_file(int group, const char* name, const char* text) {
  const long file = open_at(group, name, O_WRONLY | O_CLOEXEC);
  if (file < 0) return file;
  const long put = write_fd(static_cast<int>(file), text, strlen(text));
  close_fd(static_cast<int>(file));
  return put;
}

uint64_t read_group_number(int group, const char* name, const char* key) {
  Buffer text = {};
  uint64_t value = 0;
  if (read_small(group, name, text) && text.size) find_number(text, key, value);
  text.clear();
  return value;
}

void send_figures() {
  using channel::Figure;
  Figures figures = {};
  if (agent.state != channel::AgentState::Waiting) {
    add_from(figures, Figure::MemoryCurrent, agent.group, "memory.current", "");
    add_from(figures, Figure::MemoryPeak, agent.group, "memory.peak", "");
    add_from(figures, Figure::MemoryAnonymous, agent.group, "memory.stat", "anon");
    add_from(figures, Figure::MemoryFile, agent.group, "memory.stat", "file");
    add_from(figures, Figure::CpuUsec, agent.group, "cpu.stat", "usage_usec");
    add_from(figures, Figure::Pids, agent.group, "pids.current", "");
    add_from(figures, Figure::OomKills, agent.group, "memory.events", "oom_kill");
  }
  constexpr uint64_t kKilo = 1024;
  add_from(figures, Figure::GuestMemoryTotal, -100, "/proc/meminfo", "MemTotal", kKilo);
  add_from(figures, Figure::GuestMemoryAvailable, -100, "/proc/meminfo", "MemAvailable", kKilo);
  add_from(figures, Figure::GuestMemoryFree, -100, "/proc/meminfo", "MemFree", kKilo);
  Filesystem disk = {};
  if (agent.configured && agent.disk >= 0 && sys(__NR_fstatfs, agent.disk, &disk) >= 0) {
    const auto unit = static_cast<uint64_t>(disk.fragment_size);
    figures.add(Figure::DiskBytes, (disk.blocks - disk.free) * unit);
    figures.add(Figure::DiskLimit, disk.blocks * unit);
  }
  Buffer frame = {};
  wire::Writer<Buffer>(frame).u32(figures.count).raw(figures.text.data, figures.text.size);
  send_control(channel::Type::Figures, 0, frame.data, frame.size);
  figures.text.clear();
  frame.clear();
}

}  // namespace dsec::guest
