#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/json.h"
#include "core/model/sandbox_spec.h"

namespace dsec {

/// What one stage of a call may use. What is absent is unlimited, but for `time` and `output`.
struct FunctionLimits {
  std::chrono::milliseconds time{10'000};             ///< of the clock
  std::optional<std::chrono::milliseconds> cpu_time;  ///< processor time of all processes of the call
  std::uint64_t output = 1 << 20;                     ///< bytes of each stream; more ends the call
  bool operator==(const FunctionLimits&) const = default;
};

/// An entry of `functions` in dsec.yaml: see man/dsec-fn.1.md.
struct FunctionSpec {
  std::string name, environment;
  std::string language;                                ///< whose defaults the next three have; empty: none
  std::vector<std::string> command, compile, warm_up;  ///< argv; compile and warm_up may be empty
  bool preload = false;  ///< the command starts with the pooled sandbox, and waits for its standard input
  FunctionLimits run_limits, compile_limits;
  Limits limits;  ///< of the sandbox
  std::vector<DeviceGrant> devices;
  std::optional<GpuWish> gpus;
  std::string workdir;  ///< empty: the environment's
  unsigned pool = 0;    ///< sandboxes to have ready
  std::chrono::milliseconds pool_idle{600'000};
  bool operator==(const FunctionSpec&) const = default;
};

Json to_json(const FunctionSpec& spec);

/// A type with its environment resolved: what a call needs, on whatever host.
struct FunctionType {
  FunctionSpec spec;
  SandboxSpec sandbox;  ///< what each call's sandbox is made from
  /// Of everything that decides what a call sees; a pool is of one digest.
  Digest digest() const;
};

/// A file that a call brings along.
struct FunctionFile {
  std::string name;  ///< relative to the workdir, without '..'
  std::string content;
  std::uint32_t mode = 0644;
};

struct FunctionCall {
  std::string input;  ///< standard input
  std::vector<FunctionFile> files;
  std::vector<std::string> args;  ///< appended to the command
};

enum class Verdict { Ok, RuntimeError, TimeLimit, MemoryLimit, OutputLimit, Killed, Infra };
std::string_view to_string(Verdict verdict);

struct FunctionResult {
  Verdict verdict = Verdict::Infra;
  std::string stage = "run";   ///< "compile" or "run": which of them the rest tells of
  std::string detail;          ///< a sentence where the verdict alone does not tell
  std::string output, errors;  ///< standard output and error, up to limits.output each
  ExecResult result;
  std::chrono::microseconds time{};      ///< of the clock, from the start of the stage (with `preload`: from its input)
  std::chrono::microseconds cpu_time{};  ///< of all its processes
  std::uint64_t memory_peak = 0;         ///< bytes, of the whole sandbox since it was made; 0: this host does not tell
  bool from_pool = false;
};

}  // namespace dsec
