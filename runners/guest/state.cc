
#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

namespace dsec::guest {

void append_text_json(Buffer& out, const char* key, const char* data, size_t size) {
  out.append("\"");
  out.append(key);
  out.append("\":\"");
  out.append_json(data, size);
  out.append("\"");
}

namespace {

void append_member(Buffer& out, const char* key, int64_t value) {
  out.append(",\"");
  out.append(key);
  out.append("\":");
  out.append_number(value);
}

void append_state(Buffer& out) {
  const Config& config = keeper.config;
  out.append("{\"schema\":1,");
  append_text_json(out, "id", config.id.data, config.id.size);
  out.append(",");
  append_text_json(out, "state", keeper.state, strlen(keeper.state));
  out.append(",");
  append_text_json(out, "reason", keeper.reason ? keeper.reason : "", keeper.reason ? strlen(keeper.reason) : 0);
  out.append(",");
  append_text_json(out, "boot_id", config.boot_id.data, config.boot_id.size);
  append_member(out, "keeper_pid", keeper.self_pid);
  append_member(out, "init_pid", keeper.init_pid);
  append_member(out, "started_us", static_cast<int64_t>(keeper.started_wall_us));
  append_member(out, "ended_us", static_cast<int64_t>(keeper.ended_wall_us));
  append_member(out, "first_id", config.first_id);
  append_member(out, "id_count", config.id_count);
  append_member(out, "commands", keeper.command_count);
  if (keeper.pause.since_wall_us) {
    append_member(out, "paused_us", static_cast<int64_t>(keeper.pause.since_wall_us));
    if (keeper.pause.memory_before >= 0) append_member(out, "memory_before_pause", keeper.pause.memory_before);
  }
  out.append(",");
  append_text_json(out, "hostname", config.hostname.data, config.hostname.size);
  if (keeper.main_record.size) {
    out.append(",\"main\":");
    out.append(keeper.main_record.data, keeper.main_record.size);
  }
  out.append("}\n");
}

}  // namespace

namespace {

constexpr char kName[] = "state.json", kTemporary[] = ".tmp-state";

// It is shorter than a page, which the kernel writes as a whole or not at all; and a file that is still empty is none.
bool write_first(const Buffer& text) {
  const int fd =
      static_cast<int>(open_at(keeper.directory, kName, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd < 0) return false;
  const bool whole = write_fd(fd, text.data, text.size) == static_cast<long>(text.size);
  close_fd(fd);
  if (!whole) sys(__NR_unlinkat, keeper.directory, kName, 0);
  return whole;
}

// The record before the last, to be written over: to make and remove a file each time costs more than all the rest. Who
// still reads it has it locked, and keeps it.
int open_temporary() {
  constexpr int kExclusive = 2, kNoWait = 4;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const int fd = static_cast<int>(open_at(keeper.directory, kTemporary, kFlags, 0600));
  if (fd < 0 || sys(__NR_flock, fd, kExclusive | kNoWait) == 0) return fd;
  close_fd(fd);
  sys(__NR_unlinkat, keeper.directory, kTemporary, 0);
  return static_cast<int>(open_at(keeper.directory, kTemporary, kFlags | O_EXCL, 0600));
}

}  // namespace

// The keeper is the only writer. It does not wait for the disk: what a power cut takes is the last word of a sandbox of
// a boot that is over, and readers take an empty file for none.
void write_state() {
  static constexpr unsigned kExchange = 2;
  if (keeper.unmade) {
    sys(__NR_unlinkat, keeper.directory, kName, 0);
    return;
  }
  Buffer text = {};
  append_state(text);
  if (!keeper.has_state && text.size < 4096 && write_first(text)) {
    keeper.has_state = true;
    return text.clear();
  }
  const int fd = open_temporary();
  long done = fd < 0 ? fd : write_fd(fd, text.data, text.size);
  // Not by O_TRUNC: of a file that was emptied, ext4 writes what is new to the disk when it is closed.
  if (done == static_cast<long>(text.size)) done = sys(__NR_ftruncate, fd, text.size);
  if (fd >= 0) close_fd(fd);
  if (done == 0) {
    // To replace a file, ext4 first writes the new one to the disk; to exchange two, it does not.
    done = sys(__NR_renameat2, keeper.directory, kTemporary, keeper.directory, kName, kExchange);
    if (done < 0) sys(__NR_renameat2, keeper.directory, kTemporary, keeper.directory, kName, 0);
  }
  text.clear();
}

// memory.events (v2) and memory.oom_control (v1) have the same line.
uint64_t oom_kills() {
  if (keeper.config.oom_fd < 0) return 0;
  char text[512];
  const long size = sys(__NR_pread64, keeper.config.oom_fd, text, sizeof text, 0);
  static constexpr char kKey[] = "oom_kill ";
  for (long at = 0; at + 9 < size; ++at) {
    if ((at > 0 && text[at - 1] != '\n') || memcmp(text + at, kKey, 9) != 0) continue;
    uint64_t count = 0;
    for (at += 9; at < size && text[at] >= '0' && text[at] <= '9'; ++at) {
      count = count * 10 + static_cast<unsigned>(text[at] - '0');
    }
    return count;
  }
  return 0;
}

}  // namespace dsec::guest
