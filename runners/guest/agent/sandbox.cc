#include <asm/signal.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/agent/sandbox_mounts.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

// What dsec does on a host to start a sandbox, for the one of this machine: cgroups, mounts, and a keeper with its
// Start and Root frames.

namespace dsec::guest {
namespace {

constexpr unsigned kKeeperFd = 3;
constexpr char kPlace[] = "/run/keeper", kGroup[] = "sandbox";

// Of one frame to the keeper: fields, and the descriptors that they name by their place.
struct Request {
  Buffer text;
  int fds[kMaxDescriptors];
  unsigned count;

  wire::Writer<Buffer> writer() { return wire::Writer<Buffer>(text); }
  uint32_t add(long fd) {
    if (count == kMaxDescriptors) return kNoDescriptor;
    fds[count] = static_cast<int>(fd);
    return count++;
  }
};

Mounts mounts;

void copy_strings(wire::Writer<Buffer>& writer, const Strings& strings) {
  writer.u32(strings.count);
  for (uint32_t i = 0; i < strings.count; ++i) writer.str(strings.items[i], strlen(strings.items[i]));
}

bool copy_list(wire::Reader& reader, wire::Writer<Buffer>& writer, Failure& failure) {
  Strings strings = {};
  if (!strings.read(reader)) return unreadable(failure);
  copy_strings(writer, strings);
  strings.clear();
  return true;
}

// The filter of a sandbox that is allowed everything.
constexpr sock_filter kAllowAll[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};

// The fields of Configure that the keeper gets as they are, in between those that only we know.
bool write_start(wire::Reader& reader, Request& request, int namespace_fd, Text& machine_id, Failure& failure) {
  wire::Writer<Buffer> writer = request.writer();
  const bool privileged = agent.flags & channel::kPrivileged;
  const Text id = reader.str(), hostname = reader.str();
  machine_id = reader.str();
  // Of a system that runs by itself it is the only thing that dsec changes.
  if (agent.flags & channel::kWholeMachine) sys(__NR_sethostname, hostname.data, hostname.size);
  uint32_t flags = agent.flags & channel::kGuestNetwork ? uint32_t{wire::kStartHostNetwork} : 0;
  if (agent.flags & channel::kWholeMachine) flags |= wire::kStartJoin;
  writer.u32(wire::kVersion).u32(flags);
  writer.str(kPlace, sizeof kPlace - 1).str(id.data, id.size).str(hostname.data, hostname.size);
  Buffer boot = {};
  if (!read_small(-100, "/proc/sys/kernel/random/boot_id", boot)) boot.append("", 1);
  writer.str(boot.data, boot.size ? boot.size - 1 : 0).u64(0).u64(0).u64(0);
  boot.clear();
  Strings env = {};
  if (!env.read(reader)) return unreadable(failure);
  const Text workdir = reader.str(), user = reader.str();
  const uint32_t stop_signal = reader.u32();
  const uint64_t wall_us = reader.u64(), capabilities = reader.u64();
  const Text filter = reader.str();
  if (!reader.ok()) return unreadable(failure);
  set_clock(wall_us);
  writer.u64(wire::kNoSpool).u32(stop_signal).u64(privileged ? ~uint64_t{0} : capabilities);
  if (privileged) {
    writer.str(reinterpret_cast<const char*>(kAllowAll), sizeof kAllowAll);
  } else {
    writer.str(filter.data, filter.size);
  }
  copy_strings(writer, env);
  writer.str(workdir.data, workdir.size).str(user.data, user.size).u32(0).u32(0xffffffff);
  env.clear();
  const long place = open_at(-100, kPlace, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (place < 0) return failure.set("open", kPlace, place), false;
  writer.u32(request.add(place)).u32(request.add(namespace_fd)).u32(kNoDescriptor).u32(request.add(agent.program));
  writer.u32(kNoDescriptor).u64(0).str("", 0);  // nothing is loaded on demand that a keeper could see
  writer.u32(request.add(agent.group)).u32(request.add(agent.parent_group));
  const long events = open_at(agent.group, "memory.events", O_RDONLY | O_CLOEXEC);
  writer.u32(events < 0 ? kNoDescriptor : request.add(events)).u32(kNoDescriptor).u32(0);
  writer.str(kGroup, sizeof kGroup - 1).u32(0);
  if (!copy_list(reader, writer, failure) || !copy_list(reader, writer, failure)) return false;
  const uint32_t resources = reader.u32();
  if (!reader.ok() || resources > kMaxResourceLimits) return unreadable(failure);
  writer.u32(resources);
  for (uint32_t i = 0; i < resources; ++i) {
    const uint32_t resource = reader.u32();
    const uint64_t soft = reader.u64(), hard = reader.u64();
    writer.u32(resource).u64(soft).u64(hard);
  }
  const Text oom_score = reader.str();
  writer.str(oom_score.data, oom_score.size).u32(0).u32(0);
  return reader.ok() || unreadable(failure);
}

void write_root(Request& request, long root) {
  wire::Writer<Buffer> writer = request.writer();
  writer.u32(request.add(root)).u32(agent.network < 0 ? kNoDescriptor : request.add(agent.network));
  writer.u32(mounts.count);
  for (unsigned i = 0; i < mounts.count; ++i) {
    const auto& mount = mounts.items[i];
    writer.u32(request.add(mount.fd))
        .u32(static_cast<uint32_t>(mount.kind))
        .str(mount.target.data, mount.target.size)
        .str("", 0);
  }
}

int launch_keeper(Failure& failure) {
  int ends[2];
  long done = sys(__NR_socketpair, 1, 1 | O_CLOEXEC, 0, ends);
  if (done < 0) return failure.set("make a socket pair", "", done), -1;
  const long pid = sys(__NR_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    const long channel = sys(__NR_fcntl, ends[1], F_DUPFD_CLOEXEC, 16);
    const long null = open_at(-100, "/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd < 3; ++fd) sys(__NR_dup3, null, fd, 0);
    sys(__NR_dup3, channel, kKeeperFd, 0);
    static const char* const kArguments[] = {"dsec-keeper", "keeper", kPlace, nullptr};
    static const char* const kNothing[] = {nullptr};
    // Not by its descriptor's number: what it closes first is everything beyond the channel.
    sys(__NR_execveat, agent.program, "", kArguments, kNothing, 0x1000 /* AT_EMPTY_PATH */);
    exit_now(127);
  }
  close_fd(ends[1]);
  if (pid < 0) return failure.set("start", "the keeper", pid), close_fd(ends[0]), -1;
  agent.keeper = static_cast<int>(pid);
  return ends[0];
}

bool send_request(int socket, wire::Type type, const Request& request, Failure& failure) {
  const wire::FrameHeader header = {static_cast<uint32_t>(request.text.size), type, 0};
  const long done = send_whole(socket, header, request.text.data, request.text.size, request.fds, request.count);
  if (done < 0) failure.set("speak to", "the keeper", done);
  return done >= 0;
}

// Its texts stay in agent.reason, as failures are told after everything else here is gone.
bool await_keeper(int socket, Failure& failure) {
  Buffer frame = {};
  if (!receive_any(socket, frame)) return failure.set("hear", "the keeper", -EPIPE), false;
  wire::FrameHeader header;
  memcpy(&header, frame.data, sizeof header);
  wire::Reader reader(frame.data + sizeof header, frame.size - sizeof header);
  if (header.type == wire::Type::Started) {
    reader.u32();
    agent.init = static_cast<int>(reader.u32());
    frame.clear();
    return true;
  }
  const uint32_t error = reader.u32();
  const Text step = reader.str(), object = reader.str();
  if (header.type != wire::Type::Failed || !reader.ok()) return failure.set("understand", "the keeper", -EPROTO), false;
  return failure.set(step.data, object.data, -static_cast<long>(error)), false;
}

// Of a machine that is the sandbox it is that of PID 1.
long open_sandbox_root() {
  if (agent.flags & channel::kWholeMachine) return open_at(-100, "/proc/1/root", O_PATH | O_DIRECTORY | O_CLOEXEC);
  return copy_mount("/sb", 0);
}

bool start_keeper(Request& start, Failure& failure) {
  const long root = open_sandbox_root();
  if (root < 0) return failure.set("copy the mount of", "the root", root), false;
  Request* const second = make<Request>();
  write_root(*second, root);
  const int socket = launch_keeper(failure);
  if (socket < 0) return false;
  const bool started = send_request(socket, wire::Type::Start, start, failure) &&
                       send_request(socket, wire::Type::Root, *second, failure) && await_keeper(socket, failure);
  close_fd(socket);
  close_fd(static_cast<int>(root));
  second->text.clear();
  destroy(second);
  if (!started) return false;
  for (unsigned i = 0; i < mounts.count; ++i) close_fd(mounts.items[i].fd);
  char path[32] = "/proc/";
  Buffer number = {};
  number.append_number(agent.init);
  memcpy(path + 6, number.data, number.size);
  memcpy(path + 6 + number.size, "/root", sizeof "/root");
  number.clear();
  const long seen = open_at(-100, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (seen < 0) return failure.set("open", "the root of the sandbox", seen), false;
  agent.root = static_cast<int>(seen);
  return true;
}

// Nothing is mounted, and what there is has no limits but the machine's.
bool start_keeper_of_machine(Request& start, int keepers, Failure& failure) {
  if (!agent.service) return failure.set("run commands in", "a machine that has no system of its own", 0), false;
  const bool started = start_keeper(start, failure);
  close_fd(keepers);
  start.text.clear();
  destroy(&start);
  return started;
}

}  // namespace

bool configure(const char* data, size_t size, Failure& failure) {
  agent.configuration.append(data, size);
  wire::Reader reader(agent.configuration.data, agent.configuration.size);
  if (reader.u32() != channel::kVersion) return unreadable(failure);
  agent.flags = reader.u32();
  agent.disk = -1;
  mounts.count = 0;
  Request* const start = make<Request>();
  Text machine_id = {};
  int keepers = -1;
  if (!make_groups(failure) || !make_places(failure) || !make_namespaces(keepers, failure)) return false;
  if (agent.flags & channel::kEgress && !open_egress(failure)) return false;
  if (!write_start(reader, *start, keepers, machine_id, failure)) return false;
  if (agent.flags & channel::kWholeMachine) return start_keeper_of_machine(*start, keepers, failure);
  if (!mount_drives(reader, failure) || !set_limits(reader, failure) || !add_places(mounts, failure)) return false;
  if (!add_memory_filesystems(mounts, reader, failure) || !add_files(mounts, reader, machine_id, failure)) return false;
  if (!add_disks(mounts, reader, failure)) return false;
  forget_modules();
  if (!stack_drives(failure)) return false;
  if (!start_keeper(*start, failure)) return false;
  close_fd(keepers);
  start->text.clear();
  destroy(start);
  return true;
}

}  // namespace dsec::guest
