#pragma once

#include <linux/filter.h>
#include <stdint.h>

#include "runners/guest/memory.h"
#include "runners/protocol/wire.h"

namespace dsec::guest {

namespace wire = dsec::runners::wire;
using Text = wire::Reader::String;  ///< points into the frame it was read from, and ends with a NUL

/// Strings of a frame, with the null pointer that execve(2) wants at the end.
struct Strings {
  char** items;  ///< count + 1 pointers, owned
  uint32_t count;

  bool read(wire::Reader& reader);
  void clear();
};

struct PreparedMount {
  int fd;  ///< a detached mount; -1: a file that has this content
  wire::MountKind kind;
  Text target, content;
};

/// A cgroup of a v1 hierarchy that carries limits.
struct LimitCgroup {
  int parent, tasks;  ///< its parent directory; its file of tasks, open for writing
  Text name;
};

struct ResourceLimit {
  uint32_t resource;
  uint64_t soft, hard;
};

constexpr uint32_t kNoDescriptor = 0xffffffff;
constexpr unsigned kMaxDescriptors = 250, kMaxMounts = 200, kMaxLimitCgroups = 8, kMaxResourceLimits = 16;
constexpr unsigned kMaxClientDescriptors = 2 * kMaxLimitCgroups;

/// What the Start frame says, then the Root frame, in their order. The texts point into the frames, which live as long
/// as the keeper.
struct Config {
  uint32_t flags;
  Text directory, id, hostname, boot_id;
  uint64_t lifetime_ms, idle_ms, idle_pause_ms, output_limit;
  uint32_t stop_signal;
  uint64_t capabilities;
  sock_fprog filter;
  Strings env;
  Text workdir, user;
  uint32_t first_id, id_count;  ///< host ids that 0… inside stand for
  int directory_fd, namespace_fd, user_namespace_fd, program_fd, cgroup_fd, cgroup_parent_fd, oom_fd;
  int load_fd;          ///< a file that tells how much has come of contents that are loaded on demand; -1: all is here
  uint64_t load_bytes;  ///< of these contents
  Text load_places;     ///< where in it 64-bit numbers stand whose sum that is; 64-bit numbers, unaligned
  int trajectory_fd;    ///< directory of the log; -1: nothing is recorded
  uint32_t trajectory_checksum;
  Text cgroup_name;
  uint32_t limit_count;
  LimitCgroup limits[kMaxLimitCgroups];
  Strings masked, read_only;
  uint32_t resource_count;
  ResourceLimit resources[kMaxResourceLimits];
  Text oom_score;
  Strings machine;        ///< kStartMachine: the VMM with its arguments
  int machine_error_fd;   ///< its standard error; -1: nobody's
  int machine_memory_fd;  ///< a file that it is given where it opens `machine_memory`, see machine_memory.cc; -1: none
  Text machine_memory;    ///< path
  int console_fd;         ///< kStartConsole: its end of the console, which the keeper makes
  Strings remover, remover_env;  ///< the program, with its arguments, that removes the sandbox; none: the caller does

  int root_fd, network_fd;  ///< network_fd: -1 for the host's
  uint32_t mount_count;
  PreparedMount mounts[kMaxMounts];

  bool is_machine() const { return flags & wire::kStartMachine; }
  bool joins() const { return flags & wire::kStartJoin; }
  /// The host id of an id inside; ids beyond the map become the overflow id, which can own nothing here.
  uint32_t outside(uint32_t inside) const { return inside < id_count ? first_id + inside : 65534; }
  /// False when the frame does not hold what it must.
  bool read_start(wire::Reader& reader, const int* descriptors, unsigned descriptor_count);
  bool read_root(wire::Reader& reader, const int* descriptors, unsigned descriptor_count);
  /// An Update frame, of which nothing holds when this gives false. Takes the descriptors over, and says which flags it
  /// had.
  bool read_update(wire::Reader& reader, const int* descriptors, unsigned descriptor_count, uint32_t& update_flags);
};

/// Where something failed, for the message that dsec makes of it. Shared between a child and the keeper.
struct Failure {
  const char* step;  ///< null: nothing failed
  const char* object;
  int error;

  bool failed() const { return step != nullptr; }
  int set(const char* what, const char* of, long result) {
    step = what;
    object = of;
    error = static_cast<int>(-result);
    return 1;
  }
};

}  // namespace dsec::guest
