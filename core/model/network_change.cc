#include "core/model/network_change.h"

#include <nlohmann/json.hpp>

namespace dsec {

NetworkPlan changed(NetworkPlan plan, const NetworkChange& change) {
  if (change.plan) plan = *change.plan;
  if (change.phase) plan.phase = *change.phase;
  const auto own = plan.phases.find(plan.phase);
  NetworkPolicy& policy = own == plan.phases.end() ? plan.base : own->second;
  if (change.rules) {
    policy.allow = change.rules->allow;
    policy.deny = change.rules->deny;
  }
  if (change.inject) policy.inject = *change.inject;
  if (change.strict) policy.strict = *change.strict;
  return plan;
}

Json to_json(const NetworkChange& change) {
  Json json = Json::object();
  NetworkPolicy written;
  if (change.rules) {
    written.allow = change.rules->allow;
    written.deny = change.rules->deny;
  }
  if (change.inject) written.inject = *change.inject;
  const Json texts = to_json(written);
  if (change.plan) json["plan"] = to_json(*change.plan);
  if (change.phase) json["phase"] = *change.phase;
  if (change.rules) json["allow"] = texts["allow"], json["deny"] = texts["deny"];
  if (change.inject) json["inject"] = texts["inject"];
  if (change.strict) json["strict"] = *change.strict;
  return json;
}

}  // namespace dsec
