#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runners/protocol/wire.h"

namespace dsec::guest {

namespace wire = dsec::runners::wire;

/// spool/ in the sandbox's directory, made when there is something to keep: most sandboxes end without.
struct SpoolDirectory {
  int parent;
  int fd;  ///< -1: not opened yet

  /// The descriptor, or a negative errno.
  int open();
};

/// What is kept of a command's output: for each stream the first half of the limit, and of the rest at least the last
/// quarter, in files that are only appended to (wire.h names them). Plain data; zero and then open() begin one.
struct Spool {
  SpoolDirectory* directory;
  const char* id;
  uint64_t limit;  ///< bytes of each stream, records' headers included; 0: nothing is kept

  struct Stream {
    uint64_t written;       ///< by the command
    uint64_t kept;          ///< of these, in the files
    uint64_t head_used;     ///< bytes in the head file
    uint64_t half_used[2];  ///< bytes in each half of the tail
    uint64_t half_kept[2];  ///< of these, output
    uint64_t last_us;       ///< time of its last record
    unsigned half;          ///< that is written to
    bool in_tail;           ///< the head is full
  } streams[2];
  int head_fd, tail_fds[2][2];
  uint64_t head_size;
  int error;  ///< of the first write that failed; what it concerned counts as dropped

  void begin(SpoolDirectory& spool_directory, const char* exec_id, uint64_t output_limit);
  void append(unsigned stream, uint64_t time_us, const char* data, size_t size);
  uint64_t dropped(unsigned stream) const { return streams[stream].written - streams[stream].kept; }
  void close();

 private:
  size_t write_head(unsigned stream, uint64_t time_us, const char* data, size_t size);
  size_t write_tail(unsigned stream, uint64_t time_us, const char* data, size_t size);
  int open_file(const char* suffix);
  bool write_record(int fd, unsigned stream, uint64_t time_us, const char* data, size_t size);
};

}  // namespace dsec::guest
