#include "core/engine/branching_json.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

std::vector<std::string> strings(const Json& json, const char* key) {
  std::vector<std::string> found;
  for (const Json& item : json.value(key, Json::array())) {
    if (!item.is_string()) throw usage_error(quote(key) + " holds something else than strings");
    found.push_back(item.get<std::string>());
  }
  return found;
}

}  // namespace

Json snapshot_json(const SnapshotRequest& request) {
  return {{"layer", request.name.str() + (request.tag.empty() ? "" : ":" + request.tag)},
          {"scrub", request.scrub},
          {"labels", request.labels}};
}

Json snapshot_json(const Snapshot& snapshot) {
  Json layers = Json::array();
  for (const Digest& layer : snapshot.layers) layers.push_back(layer.str());
  return {{"digest", snapshot.layer.str()},
          {"layers", layers},
          {"bytes", snapshot.bytes},
          {"collapsed", snapshot.collapsed},
          {"warnings", snapshot.warnings}};
}

SnapshotRequest snapshot_request_from(const Json& json) {
  const LayerRef ref = LayerRef::parse(json_string(json, "layer"));
  if (!ref.name) throw usage_error(quote(json_string(json, "layer")) + " names no layer");
  SnapshotRequest request{.name = *ref.name, .tag = ref.tag.value_or(""), .labels = {}, .operation = {}};
  if (const auto scrub = json.find("scrub"); scrub != json.end()) request.scrub = *scrub == true;
  return request;
}

Snapshot snapshot_from(const Json& json) {
  Snapshot snapshot{.layer = Digest::parse(json_string(json, "digest")), .layers = {}, .warnings = {}};
  for (const std::string& layer : strings(json, "layers")) snapshot.layers.push_back(Digest::parse(layer));
  snapshot.bytes = json_u64(json, "bytes");
  snapshot.collapsed = json_u64(json, "collapsed");
  snapshot.warnings = strings(json, "warnings");
  return snapshot;
}

Json fork_json(const ForkRequest& request) {
  return {{"count", request.count}, {"name", request.name}, {"labels", request.labels}};
}

ForkRequest fork_request_from(const Json& json) {
  return {.count = json_u64(json, "count"), .name = json_string_or(json, "name", ""), .labels = {}, .operation = {}};
}

Json forks_json(const std::vector<SandboxInfo>& forks) {
  Json ids = Json::array();
  for (const SandboxInfo& fork : forks) ids.push_back(fork.id);
  return {{"sandboxes", ids}};
}

std::vector<std::string> forks_from(const Json& json) { return strings(json, "sandboxes"); }

}  // namespace dsec::engine
