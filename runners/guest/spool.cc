#include "runners/guest/spool.h"

#include <linux/uio.h>

#include "runners/guest/sys.h"

namespace dsec::guest {

constexpr size_t kHeader = sizeof(wire::SpoolRecord);

int SpoolDirectory::open() {
  if (fd >= 0) return fd;
  const long made = sys(__NR_mkdirat, parent, "spool", 0700);
  if (made < 0 && made != -EEXIST) return static_cast<int>(made);
  return fd = static_cast<int>(open_at(parent, "spool", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

void Spool::begin(SpoolDirectory& spool_directory, const char* exec_id, uint64_t output_limit) {
  directory = &spool_directory;
  id = exec_id;
  // Below this the quarters would not hold a record.
  limit = output_limit == wire::kNoSpool ? 0 : output_limit < 4096 ? 4096 : output_limit;
  head_fd = tail_fds[0][0] = tail_fds[0][1] = tail_fds[1][0] = tail_fds[1][1] = -1;
}

int Spool::open_file(const char* suffix) {
  char name[64];
  const size_t length = strlen(id);
  memcpy(name, id, length);
  memcpy(name + length, suffix, strlen(suffix) + 1);
  const int place = directory->open();
  if (place < 0) return place;
  // A half that is begun again is a new file: who still reads the old one keeps it.
  sys(__NR_unlinkat, place, name, 0);
  return static_cast<int>(open_at(place, name, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
}

bool Spool::write_record(int fd, unsigned stream, uint64_t time_us, const char* data, size_t size) {
  const wire::SpoolRecord record = {time_us, static_cast<uint32_t>(size), stream + 1};
  const iovec parts[] = {{const_cast<wire::SpoolRecord*>(&record), kHeader}, {const_cast<char*>(data), size}};
  const long wrote = fd < 0 ? fd : sys(__NR_writev, fd, parts, 2);
  if (wrote == static_cast<long>(kHeader + size)) return true;
  if (!error) error = wrote < 0 ? static_cast<int>(-wrote) : ENOSPC;
  // Half a record would make what follows unreadable.
  if (wrote > 0) {
    const long end = sys(__NR_lseek, fd, 0, 2 /* SEEK_END */);
    if (end >= wrote) sys(__NR_ftruncate, fd, end - wrote);
  }
  return false;
}

size_t Spool::write_head(unsigned stream, uint64_t time_us, const char* data, size_t size) {
  Stream& state = streams[stream];
  const uint64_t room = limit / 2 - state.head_used;
  if (room <= kHeader) return 0;
  const size_t part = size < room - kHeader ? size : static_cast<size_t>(room - kHeader);
  if (head_fd < 0) head_fd = open_file(".head");
  if (write_record(head_fd, stream, time_us, data, part)) {
    head_size += kHeader + part;
    state.head_used += kHeader + part;
    state.kept += part;
  }
  return part;
}

size_t Spool::write_tail(unsigned stream, uint64_t time_us, const char* data, size_t size) {
  static constexpr const char* kSuffixes[2][2] = {{".1a", ".1b"}, {".2a", ".2b"}};
  Stream& state = streams[stream];
  const uint64_t most = limit / 4;
  if (most - state.half_used[state.half] <= kHeader) {
    state.half ^= 1;
    int& fd = tail_fds[stream][state.half];
    if (fd >= 0) close_fd(fd);
    fd = -1;
    state.kept -= state.half_kept[state.half];
    state.half_used[state.half] = state.half_kept[state.half] = 0;
  }
  int& fd = tail_fds[stream][state.half];
  if (fd < 0) fd = open_file(kSuffixes[stream][state.half]);
  const uint64_t room = most - state.half_used[state.half] - kHeader;
  const size_t part = size < room ? size : static_cast<size_t>(room);
  if (write_record(fd, stream, time_us, data, part)) {
    state.half_used[state.half] += kHeader + part;
    state.half_kept[state.half] += part;
    state.kept += part;
  }
  return part;
}

void Spool::append(unsigned stream, uint64_t time_us, const char* data, size_t size) {
  Stream& state = streams[stream];
  state.written += size;
  while (size > 0 && limit > 0) {
    // By time the reader tells which half of the tail is the older one, also when one piece lies in both.
    if (time_us <= state.last_us) time_us = state.last_us + 1;
    state.last_us = time_us;
    size_t part = state.in_tail ? 0 : write_head(stream, time_us, data, size);
    if (part == 0) {
      state.in_tail = true;
      part = write_tail(stream, time_us, data, size);
    }
    data += part;
    size -= part;
  }
}

void Spool::close() {
  if (head_fd >= 0) close_fd(head_fd);
  for (auto& halves : tail_fds) {
    for (int& fd : halves) {
      if (fd >= 0) close_fd(fd);
      fd = -1;
    }
  }
  head_fd = -1;
}

}  // namespace dsec::guest
