#include "core/model/function_spec.h"

#include <nlohmann/json.hpp>

namespace dsec {
namespace {

Json to_json(const FunctionLimits& limits) {
  Json json = {{"time_ms", limits.time.count()}, {"output", limits.output}};
  if (limits.cpu_time) json["cpu_time_ms"] = limits.cpu_time->count();
  return json;
}

}  // namespace

Json to_json(const FunctionSpec& spec) {
  Json json = {{"name", spec.name},
               {"environment", spec.environment},
               {"command", spec.command},
               {"compile", spec.compile},
               {"warm_up", spec.warm_up},
               {"preload", spec.preload},
               {"run_limits", to_json(spec.run_limits)},
               {"compile_limits", to_json(spec.compile_limits)},
               {"workdir", spec.workdir},
               {"pool", spec.pool},
               {"pool_idle_ms", spec.pool_idle.count()}};
  if (!spec.language.empty()) json["language"] = spec.language;
  if (spec.limits.cpu_class != CpuClass::Default) json["class"] = to_string(spec.limits.cpu_class);
  for (const DeviceGrant& device : spec.devices)
    json["devices"].push_back({{"source", device.source}, {"target", device.target}});
  if (spec.gpus) json["gpus"] = dsec::to_json(*spec.gpus);
  return json;
}

Digest FunctionType::digest() const {
  return Digest::of(canonical_json({{"function", to_json(spec)}, {"sandbox", dsec::to_json(sandbox)}}));
}

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::Ok:
      return "ok";
    case Verdict::RuntimeError:
      return "runtime-error";
    case Verdict::TimeLimit:
      return "time-limit";
    case Verdict::MemoryLimit:
      return "memory-limit";
    case Verdict::OutputLimit:
      return "output-limit";
    case Verdict::Killed:
      return "killed";
    case Verdict::Infra:
      return "infra";
  }
  return "infra";
}

}  // namespace dsec
