#pragma once

#include <stdint.h>

#include "runners/guest/config.h"

namespace dsec::guest {

/// The log of man/dsec-trajectory.5.md, of which the keeper is the only writer as long as it lives.

/// Somebody who goes on when all that was written so far has reached the disk. Must stay where it is until then.
struct DiskWait {
  DiskWait* next;
  uint64_t mark;
  void* owner;
  /// `error` 0, or negative when the disk did not take it.
  void (*ready)(void* owner, long error);
};

/// An operation that its caller named.
struct NamedOperation {
  NamedOperation* next;
  uint32_t hash;
  bool done;  ///< its end is on the disk
  Buffer name;
};

/// An operation between its two records; part of what carries it out.
struct Operation {
  uint64_t sequence;      ///< 0: it is not recorded
  uint64_t begun_us;      ///< monotonic
  NamedOperation* named;  ///< null: nobody can ask for it again, so nobody waits for the disk
};

struct OperationRequest {
  Text op_id;  ///< empty: none
  const char* kind;
  uint32_t origin;      ///< place in wire::kOrigins
  const char* exec_id;  ///< null: it is no command
  Text request;         ///< JSON, without newlines
};

/// Opens the log in the configured directory; without one nothing is recorded.
bool open_trajectory(Failure& failure);
bool is_recording();

/// Null when no operation of that name has begun.
NamedOperation* find_named(const Text& op_id);
/// Writes that it begins, under a name that was not found. False when it is named and that cannot be written: it may
/// not begin then.
bool begin_operation(Operation& operation, const OperationRequest& request, Failure& failure);
/// Writes that it has ended: `outcome` as the format names it, and members that each begin with a comma. False when it
/// is named and that cannot be written.
bool end_operation(Operation& operation, const char* outcome, const Buffer& members, Failure& failure);

/// `wait.ready` is called when everything written so far is on the disk, never before this returns. All who wait at a
/// time share one flush, which is made by a child, so that a slow disk holds up nobody else.
void await_disk(DiskWait& wait);
/// The next flush concerns this file, too.
void flush_file(int fd);
/// The child has ended. False: it is another's.
bool reap_flush(int pid, int status);
/// What nobody waits for is flushed within a second. Monotonic microseconds when that is due; 0: nothing is.
uint64_t flush_due();
void check_flush(uint64_t now);
/// Flushes here and now for all who wait.
void finish_trajectory();

/// The directory of the log, for what lies beside it; a name there begins with the number of its operation.
int trajectory_directory();
/// `name` (room for 32 bytes) becomes "SEQ.SUFFIX".
void name_beside(const Operation& operation, const char* suffix, char* name);
/// A file was linked or made beside the log.
void note_file_beside();

/// Bytes as JSON: a string, or {"base64":"…"}.
void append_bytes_json(Buffer& out, const char* data, size_t size);

}  // namespace dsec::guest
