#include "runners/guest/config.h"

#include "runners/guest/sys.h"

namespace dsec::guest {

bool Strings::read(wire::Reader& reader) {
  const uint32_t wanted = reader.u32();
  // Each takes at least its length and its NUL, so a false count cannot make us allocate more than the frame justifies.
  if (!reader.ok() || wanted > reader.left() / 5) {
    reader = wire::Reader(nullptr, 0);
    reader.u32();
    return false;
  }
  items = static_cast<char**>(allocate((size_t{wanted} + 1) * sizeof(char*)));
  count = wanted;
  for (uint32_t i = 0; i < wanted; ++i) items[i] = const_cast<char*>(reader.str().data);
  items[wanted] = nullptr;
  return reader.ok();
}

void Strings::clear() {
  release(items, (size_t{count} + 1) * sizeof(char*));
  items = nullptr;
  count = 0;
}

namespace {

struct Descriptors {
  const int* fds;
  unsigned count;
  bool valid = true;

  // -1 for "none".
  int take(uint32_t index) {
    if (index == kNoDescriptor) return -1;
    if (index < count) return fds[index];
    valid = false;
    return -1;
  }
  int need(uint32_t index) {
    if (index == kNoDescriptor) valid = false;
    return take(index);
  }
};

}  // namespace

bool Config::read_start(wire::Reader& reader, const int* fds, unsigned descriptor_count) {
  Descriptors from{fds, descriptor_count};
  if (reader.u32() != wire::kVersion) return false;
  flags = reader.u32();
  directory = reader.str();
  id = reader.str();
  hostname = reader.str();
  boot_id = reader.str();
  lifetime_ms = reader.u64();
  idle_ms = reader.u64();
  idle_pause_ms = reader.u64();
  output_limit = reader.u64();
  stop_signal = reader.u32();
  capabilities = reader.u64();
  const Text program = reader.str();
  filter.len = static_cast<unsigned short>(program.size / sizeof(sock_filter));
  if (program.size % sizeof(sock_filter) || filter.len == 0 || filter.len > 4096) return false;
  // The frame gives no alignment.
  filter.filter = static_cast<sock_filter*>(allocate(program.size));
  memcpy(filter.filter, program.data, program.size);
  if (!env.read(reader)) return false;
  workdir = reader.str();
  user = reader.str();
  first_id = reader.u32();
  id_count = reader.u32();
  directory_fd = from.need(reader.u32());
  namespace_fd = from.need(reader.u32());
  user_namespace_fd = from.take(reader.u32());
  program_fd = from.need(reader.u32());
  load_fd = from.take(reader.u32());
  load_bytes = reader.u64();
  load_places = reader.str();
  cgroup_fd = from.need(reader.u32());
  cgroup_parent_fd = from.need(reader.u32());
  oom_fd = from.take(reader.u32());
  trajectory_fd = from.take(reader.u32());
  trajectory_checksum = reader.u32();
  cgroup_name = reader.str();
  limit_count = reader.u32();
  if (limit_count > kMaxLimitCgroups) return false;
  for (uint32_t i = 0; i < limit_count; ++i) {
    limits[i].parent = from.need(reader.u32());
    limits[i].tasks = from.need(reader.u32());
    limits[i].name = reader.str();
  }
  if (!masked.read(reader) || !read_only.read(reader)) return false;
  resource_count = reader.u32();
  if (resource_count > kMaxResourceLimits) return false;
  for (uint32_t i = 0; i < resource_count; ++i) {
    resources[i].resource = reader.u32();
    resources[i].soft = reader.u64();
    resources[i].hard = reader.u64();
  }
  oom_score = reader.str();
  if (!remover.read(reader) || !remover_env.read(reader)) return false;
  machine_error_fd = machine_memory_fd = -1;
  if (is_machine()) {
    if (!machine.read(reader) || machine.count == 0) return false;
    machine_error_fd = from.take(reader.u32());
    machine_memory_fd = from.take(reader.u32());
    machine_memory = reader.str();
  }
  return reader.ok() && from.valid && reader.left() == 0 &&
         (user_namespace_fd >= 0) == ((flags & wire::kStartUserNamespace) != 0);
}

bool Config::read_update(wire::Reader& reader, const int* fds, unsigned descriptor_count, uint32_t& update_flags) {
  Descriptors from{fds, descriptor_count};
  const uint64_t lifetime = reader.u64(), idle = reader.u64(), idle_pause = reader.u64(), output = reader.u64();
  update_flags = reader.u32();
  const uint32_t count = reader.u32();
  if (count > kMaxLimitCgroups) return false;
  LimitCgroup groups[kMaxLimitCgroups] = {};
  for (uint32_t i = 0; i < count; ++i) {
    groups[i].parent = from.need(reader.u32());
    groups[i].tasks = from.need(reader.u32());
    groups[i].name = reader.str();
    // The frame goes, and the group is named as all of this sandbox are.
    if (groups[i].name.size != cgroup_name.size || memcmp(groups[i].name.data, cgroup_name.data, cgroup_name.size) != 0)
      return false;
    groups[i].name = cgroup_name;
  }
  if (!reader.ok() || !from.valid || reader.left() != 0) return false;
  flags &= ~uint32_t{wire::kStartIdle};
  if (update_flags & wire::kUpdateIdle) flags |= wire::kStartIdle;
  if (update_flags & wire::kUpdateTimes) {
    lifetime_ms = lifetime;
    idle_ms = idle;
    idle_pause_ms = idle_pause;
    output_limit = output;
  }
  if (!(update_flags & wire::kUpdateGroups)) return true;
  for (uint32_t i = 0; i < limit_count; ++i) {
    close_fd(limits[i].parent);
    close_fd(limits[i].tasks);
  }
  limit_count = count;
  memcpy(limits, groups, sizeof groups);
  return true;
}

bool Config::read_root(wire::Reader& reader, const int* fds, unsigned descriptor_count) {
  Descriptors from{fds, descriptor_count};
  root_fd = from.need(reader.u32());
  network_fd = from.take(reader.u32());
  mount_count = reader.u32();
  if (mount_count > kMaxMounts) return false;
  for (uint32_t i = 0; i < mount_count; ++i) {
    mounts[i].fd = from.take(reader.u32());
    mounts[i].kind = static_cast<wire::MountKind>(reader.u32());
    mounts[i].target = reader.str();
    mounts[i].content = reader.str();
  }
  return reader.ok() && from.valid && reader.left() == 0 &&
         (network_fd < 0) == ((flags & wire::kStartHostNetwork) != 0);
}

}  // namespace dsec::guest
