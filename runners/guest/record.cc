#include "runners/guest/keeper.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

// Of each stream so much stands in the log itself.
constexpr size_t kInline = 16u << 10;

bool fits_in_the_log(const Spool& spool) {
  for (const Spool::Stream& stream : spool.streams) {
    if (stream.in_tail || stream.written > kInline) return false;
  }
  return true;
}

void append_inline(Buffer& out, const Spool& spool) {
  if (spool.head_fd < 0) return;
  char* const bytes = static_cast<char*>(allocate(spool.head_size));
  const long got = sys(__NR_pread64, spool.head_fd, bytes, spool.head_size, 0);
  Buffer streams[2] = {};
  wire::SpoolRecord record = {};
  for (size_t at = 0; got > 0 && at + sizeof record <= static_cast<size_t>(got); at += sizeof record + record.length) {
    memcpy(&record, bytes + at, sizeof record);
    if (record.length > static_cast<size_t>(got) - at - sizeof record) break;
    streams[record.stream == 2].append(bytes + at + sizeof record, record.length);
  }
  release(bytes, spool.head_size);
  static constexpr const char* kMembers[] = {",\"stdout\":", ",\"stderr\":"};
  for (unsigned stream = 0; stream < 2; ++stream) {
    if (!streams[stream].size) continue;
    out.append(kMembers[stream]);
    append_bytes_json(out, streams[stream].data, streams[stream].size);
    streams[stream].clear();
  }
}

void append_part(Buffer& out, const char* name, uint64_t size) {
  out.append("{");
  append_text_json(out, "name", name, strlen(name));
  out.append(",\"bytes\":");
  out.append_number(static_cast<int64_t>(size));
  out.append("}");
}

// The spool goes with the sandbox; what is linked beside the log stays.
void link_part(Buffer& parts, const Command& command, int fd, const char* suffix, uint64_t size) {
  if (fd < 0) return;
  char from[32], to[32];
  const size_t length = strlen(command.id);
  memcpy(from, command.id, length);
  memcpy(from + length, suffix, strlen(suffix) + 1);
  name_beside(command.operation, suffix, to);
  if (sys(__NR_linkat, keeper.spool_directory.open(), from, trajectory_directory(), to, 0) < 0) return;
  note_file_beside();
  if (command.operation.named) flush_file(fd);
  if (parts.size) parts.append(",");
  append_part(parts, to, size);
}

void link_output(Buffer& parts, const Command& command) {
  static constexpr const char* kSuffixes[2][2] = {{".1a", ".1b"}, {".2a", ".2b"}};
  const Spool& spool = command.spool;
  link_part(parts, command, spool.head_fd, ".head", spool.head_size);
  for (unsigned stream = 0; stream < 2; ++stream) {
    const unsigned young = spool.streams[stream].half;
    for (unsigned turn = 0; turn < 2; ++turn) {
      const unsigned half = young ^ 1 ^ turn;  // the older one first
      link_part(parts, command, spool.tail_fds[stream][half], kSuffixes[stream][half],
                spool.streams[stream].half_used[half]);
    }
  }
}

void append_loaded(Buffer& out) {
  const Config& config = keeper.config;
  if (config.load_fd < 0) return;
  uint64_t fetched = 0;
  for (size_t at = 0; at + sizeof(uint64_t) <= config.load_places.size; at += sizeof(uint64_t)) {
    uint64_t place = 0, bytes = 0;
    memcpy(&place, config.load_places.data + at, sizeof place);
    if (sys(__NR_pread64, config.load_fd, &bytes, sizeof bytes, place) == static_cast<long>(sizeof bytes))
      fetched += bytes;
  }
  out.append(",\"on_demand\":{\"bytes\":");
  out.append_number(static_cast<int64_t>(config.load_bytes));
  out.append(",\"fetched\":");
  out.append_number(static_cast<int64_t>(fetched));
  out.append("}");
}

}  // namespace

void append_command_record(Buffer& out, Command& command) {
  append_result_json(out, command);
  append_loaded(out);
  Buffer files = {};
  if (fits_in_the_log(command.spool)) {
    append_inline(out, command.spool);
  } else {
    Buffer parts = {};
    link_output(parts, command);
    if (parts.size) {
      files.append("\"output\":[");
      files.append(parts.data, parts.size);
      files.append("]");
    }
    parts.clear();
  }
  if (command.given_fd >= 0) {
    char name[32];
    name_beside(command.operation, ".stdin", name);
    if (command.operation.named) flush_file(command.given_fd);
    files.append(files.size ? ",\"stdin\":" : "\"stdin\":");
    append_part(files, name, command.given_size);
  } else if (command.given_size) {
    out.append(",\"stdin\":");
    append_bytes_json(out, command.given.data, command.given.size);
  }
  if (files.size) {
    out.append(",\"files\":{");
    out.append(files.data, files.size);
    out.append("}");
  }
  files.clear();
  command.given.clear();
}

void note_input(Command& command, const char* data, size_t size) {
  if (!command.operation.sequence) return;
  const uint64_t room = command.spool.limit - command.given_size;
  if (size > room) size = static_cast<size_t>(room);
  if (command.given_fd < 0 && command.given_size + size <= kInline) {
    command.given.append(data, size);
    command.given_size += size;
    return;
  }
  if (command.given_fd < 0) {
    char name[32];
    name_beside(command.operation, ".stdin", name);
    const long fd =
        open_at(trajectory_directory(), name, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    note_file_beside();
    command.given_fd = static_cast<int>(fd);
    write_fd(command.given_fd, command.given.data, command.given.size);
    command.given.clear();
  }
  const long wrote = write_fd(command.given_fd, data, size);
  if (wrote > 0) command.given_size += static_cast<uint64_t>(wrote);
}

}  // namespace dsec::guest
