#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

#include "core/base/digest.h"
#include "core/model/layer_manifest.h"
#include "core/model/network_policy.h"
#include "core/model/operation_context.h"
#include "core/model/pmem_use.h"

namespace dsec {

enum class NetworkMode { None, Host, Policy };
std::string_view to_string(NetworkMode mode);
enum class UserNamespace { Auto, Host };

/// What counts when processors are short: Latency comes before the others, Batch gets what they leave.
enum class CpuClass { Default, Latency, Batch };
/// "default", "latency", "batch".
std::string_view to_string(CpuClass cpu_class);
/// Throws Error (Usage) for another word.
CpuClass cpu_class_from(std::string_view word);

/// "auto", "on", "off".
std::string_view to_string(PmemUse use);
/// Throws Error (Usage) for another word.
PmemUse pmem_use_from(std::string_view word);

/// Absent means unlimited. A limit that the host cannot enforce is refused at creation.
struct Limits {
  std::optional<double> cpus;           ///< cores, e.g. 1.5
  std::optional<std::uint64_t> memory;  ///< bytes
  std::optional<std::uint64_t> pids;    ///< tasks
  std::optional<std::uint64_t> disk;    ///< bytes of the writable layer
  std::uint64_t output = 64ull << 20;   ///< bytes of each stream of a command kept (head and tail)
  CpuClass cpu_class = CpuClass::Default;
  std::string class_by;  ///< what the host does for the class, told by the runner: "cpu.idle", "cpu.weight", …
  bool operator==(const Limits&) const = default;
};

/// A host path bound into the sandbox: recorded, and refused by validation.
struct BindMount {
  std::string source, target;  ///< absolute
  bool read_only = false;
  bool operator==(const BindMount&) const = default;
};

/// An empty filesystem in memory, which goes with the sandbox and is no part of what it wrote.
struct TmpfsMount {
  std::string target;      ///< absolute
  std::uint64_t size = 0;  ///< bytes; 0: what the kernel gives, half of the memory
  bool operator==(const TmpfsMount&) const = default;
};

/// A character device of the host that the sandbox has, too.
struct DeviceGrant {
  std::string source;  ///< absolute path on the host
  std::string target;  ///< below /dev
  bool operator==(const DeviceGrant&) const = default;
};

/// Devices of which the sandbox gets some that are free when it is made: they become entries of `devices`.
struct GpuWish {
  std::vector<std::string> devices;  ///< to choose from: paths below /dev, the same inside
  std::uint64_t count = 1;
  bool exclusive = true;              ///< nobody else of this DSEC_HOME has them meanwhile; else all who share may
  std::chrono::milliseconds wait{0};  ///< for one to become free, before that is refused
  bool operator==(const GpuWish&) const = default;
};

/// Everything that decides how a sandbox is made. Written into its lease, so that it can be shown and made again.
struct SandboxSpec {
  std::string name;         ///< optional, unique among the sandboxes of a DSEC_HOME; [a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}
  std::string environment;  ///< name of the environment it was made from, or empty
  std::string backend = "container";
  std::vector<Digest> layers;     ///< manifest digests, bottom to top
  bool accept_conflicts = false;  ///< a directory over a symlink etc. between independent layers is accepted
  ImageConfig config;             ///< merged of the layers and the request: env, workdir, user, stop signal
  std::string hostname;           ///< empty: the id, which is in its place once the sandbox is recorded
  std::vector<BindMount> binds;
  std::vector<TmpfsMount> tmpfs;
  std::vector<DeviceGrant> devices;
  std::optional<GpuWish> gpus;
  Limits limits;
  NetworkMode network = NetworkMode::None;
  NetworkPlan network_plan;  ///< with Policy
  UserNamespace userns = UserNamespace::Auto;
  PmemUse pmem = PmemUse::Auto;
  std::optional<std::chrono::milliseconds> lifetime;  ///< from creation to the end
  std::optional<std::chrono::milliseconds> idle;      ///< end when no operation ran or was attached for so long
  /// Pause when no operation ran or was attached for so long; the next one resumes.
  std::optional<std::chrono::milliseconds> idle_pause;
  std::string machine_id;  ///< what /etc/machine-id says, where the layers have that file; empty: what they say
  std::string user_data;   ///< of a machine that begins from a disk: what its cloud-init is told; empty: nothing
  std::map<std::string, std::string> labels;
  bool read_only = false;  ///< no writable layer
  /// Made for one command, by a process that starts it: without either it is of no use to anybody.
  bool made_for_command = false;
  bool remove_at_end = false;  ///< foreground run: the sandbox and its record go when it has ended
  bool record = true;          ///< its operations are written to a trajectory
  bool operator==(const SandboxSpec&) const = default;
};

Json to_json(const SandboxSpec& spec);
SandboxSpec sandbox_spec_from_json(const Json& json);
/// "limits" of it alone.
Json to_json(const Limits& limits);
Json to_json(const GpuWish& wish);
/// "/dev/NAME[:/dev/OTHER]"; throws Error (Usage).
DeviceGrant parse_device(const std::string& text);

/// A command to execute in a sandbox.
struct ExecSpec {
  std::vector<std::string> argv;
  std::vector<std::string> env;  ///< "NAME=value", over the sandbox's
  std::string workdir, user;     ///< empty: the sandbox's
  bool tty = false;
  std::uint16_t rows = 24, columns = 80;
  bool open_stdin = false;  ///< the caller will write to its standard input; else it reads end of file
  bool main = false;        ///< the sandbox ends with it
  bool detach = false;      ///< nobody reads now; its output is kept for logs and attach
  std::optional<std::chrono::milliseconds> timeout;
  std::optional<std::uint64_t> output_limit;  ///< over limits.output
  OperationContext operation;
  bool operator==(const ExecSpec&) const = default;
};

Json to_json(const ExecSpec& spec);
ExecSpec exec_spec_from_json(const Json& json);

/// How a command ended, and who ended it.
struct ExecResult {
  /// Unknown: its beginning is recorded and nobody lived to record its end, so it may have been carried out or not.
  enum class Cause { Exited, Signalled, TimedOut, OutOfMemory, CannotExecute, NotFound, Lost, Unknown };
  Cause cause = Cause::Exited;
  int exit_code = 0;  ///< when Exited
  int signal = 0;     ///< when Signalled (or the signal that ended it after a timeout)
  std::chrono::microseconds duration{};
  std::uint64_t stdout_bytes = 0, stderr_bytes = 0;      ///< written by the command
  std::uint64_t stdout_dropped = 0, stderr_dropped = 0;  ///< of these, dropped from the middle
  std::uint64_t oom_kills = 0;  ///< processes of the sandbox that were killed for lack of memory while it ran
  std::uint64_t memory_limit = 0, memory_peak = 0;  ///< bytes, of the sandbox, with oom_kills; 0: none, or not told
  std::string detail;                               ///< errno text and the like, for CannotExecute, NotFound, Lost
  bool session_ended = false;                       ///< of a session's command: the shell has ended, too
  /// 0..255 as DESIGN's exit code table has it: 124 timeout, 126 cannot execute, 127 not found, 128+n, 125 lost or
  /// unknown.
  int shell_code() const noexcept;
};

}  // namespace dsec
