#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/model/sandbox_spec.h"

namespace dsec::engine {

/// What shall be otherwise in a sandbox; what is absent stays as it is.
struct UpdateRequest {
  /// 0 takes the limit away.
  std::optional<double> cpus;
  std::optional<std::uint64_t> memory, pids, disk, output;
  std::optional<CpuClass> cpu_class;
  /// 0: never. `lifetime` counts from the creation, the others from now on.
  std::optional<std::chrono::milliseconds> lifetime, idle, idle_pause;
  std::map<std::string, std::optional<std::string>> labels;  ///< without a value: removed
  OperationContext operation;

  /// Whether only the lease says it: that can also be said of a sandbox that has ended.
  bool only_labels() const;
};

/// The spec of a sandbox after the request. Throws Error (Usage) for one that asks for nothing, or for what no sandbox
/// can have.
SandboxSpec updated(const SandboxSpec& spec, const UpdateRequest& request);

/// As it is recorded, and the limits of that: how long it may live and its labels are left out. Throws Error (Usage).
Json update_json(const UpdateRequest& request);
UpdateRequest limits_request_from(const Json& json);

}  // namespace dsec::engine
