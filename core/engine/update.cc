#include "core/engine/update.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace dsec::engine {
namespace {
using std::chrono::milliseconds;

template <typename T>
void change(std::optional<T>& limit, const std::optional<T>& wish) {
  if (!wish) return;
  limit = *wish == T{} ? std::nullopt : wish;
}

template <typename T>
void put(Json& json, const char* key, const std::optional<T>& wish) {
  if (wish) json[key] = *wish;
}

void put(Json& json, const char* key, const std::optional<milliseconds>& wish) {
  if (wish) json[key] = wish->count();
}

}  // namespace

bool UpdateRequest::only_labels() const {
  return !cpus && !memory && !pids && !disk && !output && !cpu_class && !lifetime && !idle && !idle_pause;
}

SandboxSpec updated(const SandboxSpec& spec, const UpdateRequest& request) {
  if (request.only_labels() && request.labels.empty())
    throw usage_error("nothing is to be changed").hint("name a limit, a time or a --label");
  SandboxSpec after = spec;
  change(after.limits.cpus, request.cpus);
  change(after.limits.memory, request.memory);
  change(after.limits.pids, request.pids);
  change(after.limits.disk, request.disk);
  if (request.output) after.limits.output = *request.output;
  if (request.output && *request.output == 0) throw usage_error("an output limit of 0 would keep nothing");
  if (request.cpu_class) after.limits.cpu_class = *request.cpu_class;
  change(after.lifetime, request.lifetime);
  change(after.idle, request.idle);
  change(after.idle_pause, request.idle_pause);
  for (const auto& [key, value] : request.labels) {
    if (value)
      after.labels[key] = *value;
    else
      after.labels.erase(key);
  }
  return after;
}

Json update_json(const UpdateRequest& request) {
  Json json = Json::object();
  put(json, "cpus", request.cpus);
  put(json, "memory", request.memory);
  put(json, "pids", request.pids);
  put(json, "disk", request.disk);
  put(json, "output", request.output);
  if (request.cpu_class) json["class"] = to_string(*request.cpu_class);
  put(json, "lifetime_ms", request.lifetime);
  put(json, "idle_ms", request.idle);
  put(json, "idle_pause_ms", request.idle_pause);
  for (const auto& [key, value] : request.labels) json["labels"][key] = value ? Json(*value) : Json(nullptr);
  return json;
}

UpdateRequest limits_request_from(const Json& json) {
  UpdateRequest request;
  if (const auto cpus = json.find("cpus"); cpus != json.end()) {
    if (!cpus->is_number()) throw usage_error("'cpus' is no number");
    request.cpus = cpus->get<double>();
  }
  const auto take = [&](const char* key, std::optional<std::uint64_t>& limit) {
    if (json.contains(key)) limit = json_u64(json, key);
  };
  take("memory", request.memory);
  take("pids", request.pids);
  take("disk", request.disk);
  take("output", request.output);
  if (json.contains("class")) request.cpu_class = cpu_class_from(json_string(json, "class"));
  return request;
}

}  // namespace dsec::engine
