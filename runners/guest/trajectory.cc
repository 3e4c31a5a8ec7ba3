#include "runners/guest/trajectory.h"

#include <asm/signal.h>

#include "core/base/crc32c.h"
#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr unsigned kBuckets = 256;
constexpr uint64_t kFlushAfter = 1'000'000;

struct Log {
  int directory, fd;
  uint64_t size;  // bytes that are whole lines
  uint32_t checksum;
  uint64_t sequence;
  uint64_t unrecorded;  // operations that could not be written since the last that could
  NamedOperation* named[kBuckets];

  // Marks count what was written; a flush covers all up to the mark at its beginning.
  uint64_t written, flushed;
  uint64_t dirty_since_us;
  DiskWait* waits;
  DiskWait** last_wait;
  Buffer files;  // descriptors, ints, for the next flush
  bool directory_dirty, parent_dirty;

  // What the child works on.
  int flusher;  // pid; 0: none
  uint64_t flusher_mark;
  Buffer flusher_files;
  bool flusher_directory, flusher_parent;
  long flusher_error;
};
Log log = {};
alignas(16) char flusher_stack[2048];

void append_hex(Buffer& out, uint32_t value) {
  static constexpr char kHex[] = "0123456789abcdef";
  char digits[8];
  for (int i = 7; i >= 0; --i, value >>= 4) digits[i] = kHex[value & 15];
  out.append(digits, sizeof digits);
}

void append_member(Buffer& out, const char* key, uint64_t value) {
  out.append(",\"");
  out.append(key);
  out.append("\":");
  out.append_number(static_cast<int64_t>(value));
}

// `line` lacks its checksum and its end. 0, or a negative errno: then nothing of it stays.
long write_line(Buffer& line) {
  const uint32_t checksum = crc32c(log.checksum, line.data, line.size);
  line.append(",\"crc\":\"");
  append_hex(line, checksum);
  line.append("\"}\n");
  const long wrote = write_fd(log.fd, line.data, line.size);
  if (wrote != static_cast<long>(line.size)) {
    if (wrote > 0) sys(__NR_ftruncate, log.fd, log.size);
    return wrote < 0 ? wrote : -ENOSPC;
  }
  log.checksum = checksum;
  log.size += line.size;
  if (log.written++ == log.flushed) log.dirty_since_us = monotonic_us();
  return 0;
}

void append_head(Buffer& line, const Operation& operation, const char* record) {
  line.append("{\"seq\":");
  line.append_number(static_cast<int64_t>(operation.sequence));
  line.append(",\"record\":\"");
  line.append(record);
  line.append("\",\"op_id\":\"");
  if (operation.named) {
    line.append(operation.named->name.data, operation.named->name.size);
  } else {
    line.append("#");
    line.append_number(static_cast<int64_t>(operation.sequence));
  }
  line.append("\"");
}

NamedOperation* add_named(const Text& op_id) {
  NamedOperation* const named = make<NamedOperation>();
  named->hash = crc32c(0, op_id.data, op_id.size);
  named->name.append(op_id.data, op_id.size);
  NamedOperation*& bucket = log.named[named->hash % kBuckets];
  named->next = bucket;
  bucket = named;
  return named;
}

// The one that add_named() added last.
void take_back(NamedOperation* named) {
  log.named[named->hash % kBuckets] = named->next;
  named->name.clear();
  destroy(named);
}

long flush_now() {
  long error = 0;
  const auto note = [&](long done) {
    if (done < 0 && !error) error = done;
  };
  const int* const files = reinterpret_cast<const int*>(log.flusher_files.data);
  for (size_t i = 0; i < log.flusher_files.size / sizeof(int); ++i) note(sys(__NR_fdatasync, files[i]));
  if (log.flusher_directory) note(sys(__NR_fsync, log.directory));
  if (log.flusher_parent) {
    const long parent = open_at(log.directory, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    note(parent < 0 ? parent : sys(__NR_fsync, parent));
    if (parent >= 0) close_fd(static_cast<int>(parent));
  }
  note(sys(__NR_fdatasync, log.fd));
  return error;
}

int run_flush(void*) {
  log.flusher_error = flush_now();
  return 0;
}

void take_work() {
  log.flusher_mark = log.written;
  log.flusher_files = log.files;
  log.files = {};
  log.flusher_directory = log.directory_dirty;
  log.flusher_parent = log.parent_dirty;
  log.directory_dirty = log.parent_dirty = false;
}

void finish_work(long error) {
  const int* const files = reinterpret_cast<const int*>(log.flusher_files.data);
  for (size_t i = 0; i < log.flusher_files.size / sizeof(int); ++i) close_fd(files[i]);
  log.flusher_files.clear();
  // The kernel tells of a failed write once: what was not taken now is not going to be.
  log.flushed = log.flusher_mark;
  log.dirty_since_us = monotonic_us();
  while (log.waits && log.waits->mark <= log.flushed) {
    DiskWait* const wait = log.waits;
    log.waits = wait->next;
    if (!log.waits) log.last_wait = &log.waits;
    wait->ready(wait->owner, error);
  }
}

void start_flush() {
  if (log.flusher) return;
  take_work();
  clone_args args = {};
  // It shares our descriptors, so that it holds none open that we close.
  args.flags = CLONE_VM | CLONE_FILES;
  args.exit_signal = SIGCHLD;
  log.flusher_error = -EIO;  // unless it says otherwise: somebody may kill it
  const long pid = clone_on_stack(args, flusher_stack, sizeof flusher_stack, run_flush, nullptr);
  if (pid > 0) {
    log.flusher = static_cast<int>(pid);
  } else {
    finish_work(flush_now());
  }
}

}  // namespace

bool open_trajectory(Failure& failure) {
  log.fd = -1;
  log.last_wait = &log.waits;
  log.directory = keeper.config.trajectory_fd;
  if (log.directory < 0) return true;
  const long fd = open_at(log.directory, "log.jsonl", O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return failure.set("open the trajectory", "log.jsonl", fd), false;
  log.fd = static_cast<int>(fd);
  log.size = static_cast<uint64_t>(sys(__NR_lseek, fd, 0, 2 /* SEEK_END */));
  log.checksum = keeper.config.trajectory_checksum;
  log.directory_dirty = log.parent_dirty = true;
  return true;
}

bool is_recording() { return log.fd >= 0; }
int trajectory_directory() { return log.directory; }
void note_file_beside() { log.directory_dirty = true; }

void name_beside(const Operation& operation, const char* suffix, char* name) {
  Buffer text = {};
  text.append_number(static_cast<int64_t>(operation.sequence));
  text.append(suffix, strlen(suffix) + 1);
  memcpy(name, text.data, text.size);
  text.clear();
}

NamedOperation* find_named(const Text& op_id) {
  if (!op_id.size) return nullptr;
  const uint32_t hash = crc32c(0, op_id.data, op_id.size);
  NamedOperation* named = log.named[hash % kBuckets];
  while (named && (named->hash != hash || named->name.size != op_id.size ||
                   memcmp(named->name.data, op_id.data, op_id.size) != 0)) {
    named = named->next;
  }
  return named;
}

bool begin_operation(Operation& operation, const OperationRequest& request, Failure& failure) {
  operation = {};
  operation.begun_us = monotonic_us();
  if (!is_recording()) return true;
  if (request.op_id.size) operation.named = add_named(request.op_id);
  operation.sequence = log.sequence + 1;
  Buffer line = {};
  append_head(line, operation, "started");
  line.append(",\"kind\":\"");
  line.append(request.kind);
  line.append("\",\"origin\":\"");
  line.append(wire::kOrigins[request.origin < wire::kOriginCount ? request.origin : 0]);
  line.append("\"");
  append_member(line, "time_us", wall_time_us());
  if (request.exec_id) {
    line.append(",");
    append_text_json(line, "exec_id", request.exec_id, strlen(request.exec_id));
  }
  if (log.unrecorded) append_member(line, "unrecorded", log.unrecorded);
  line.append(",\"request\":");
  line.append(request.request.data, request.request.size);
  const long done = write_line(line);
  line.clear();
  if (done == 0) {
    log.sequence = operation.sequence;
    log.unrecorded = 0;
    return true;
  }
  // On a full disk the sandbox stays usable, if only to make room; whoever gave a name relies on the record.
  operation.sequence = 0;
  ++log.unrecorded;
  if (!operation.named) return true;
  take_back(operation.named);
  operation.named = nullptr;
  return failure.set("record the operation", "", done), false;
}

bool end_operation(Operation& operation, const char* outcome, const Buffer& members, Failure& failure) {
  if (!operation.sequence) return true;
  Buffer line = {};
  append_head(line, operation, "done");
  append_member(line, "time_us", wall_time_us());
  append_member(line, "duration_us", monotonic_us() - operation.begun_us);
  line.append(",\"outcome\":\"");
  line.append(outcome);
  line.append("\"");
  line.append(members.data, members.size);
  const long done = write_line(line);
  line.clear();
  return done == 0 || !operation.named ? true : (failure.set("record the result", "", done), false);
}

void await_disk(DiskWait& wait) {
  wait.next = nullptr;
  wait.mark = log.written;
  *log.last_wait = &wait;
  log.last_wait = &wait.next;
}

void flush_file(int fd) {
  const long copy = sys(__NR_fcntl, fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return;
  const int kept = static_cast<int>(copy);
  log.files.append(reinterpret_cast<const char*>(&kept), sizeof kept);
}

bool reap_flush(int pid, int) {
  if (!log.flusher || pid != log.flusher) return false;
  log.flusher = 0;
  finish_work(log.flusher_error);
  return true;
}

uint64_t flush_due() {
  if (log.flusher || log.written == log.flushed) return 0;
  return log.waits ? 1 : log.dirty_since_us + kFlushAfter;
}

void check_flush(uint64_t now) {
  const uint64_t due = flush_due();
  if (due && now >= due) start_flush();
}

void finish_trajectory() {
  if (log.flusher) {
    int status = 0;
    while (sys(__NR_wait4, log.flusher, &status, 0, nullptr) == -EINTR) {
    }
    reap_flush(log.flusher, status);
  }
  while (log.waits) {
    take_work();
    finish_work(flush_now());
  }
}

void append_bytes_json(Buffer& out, const char* data, size_t size) {
  if (is_utf8(data, size)) {
    out.append("\"");
    out.append_json(data, size);
    return out.append("\"");
  }
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  out.append("{\"base64\":\"");
  for (size_t at = 0; at < size; at += 3) {
    const size_t count = size - at < 3 ? size - at : 3;
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) group = group << 8 | (i < count ? static_cast<unsigned char>(data[at + i]) : 0u);
    char digits[4];
    for (size_t i = 0; i < 4; ++i) digits[i] = i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
    out.append(digits, sizeof digits);
  }
  out.append("\"}");
}

}  // namespace dsec::guest
