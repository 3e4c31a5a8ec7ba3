#include "core/engine/swe_agent.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/engine/atif.h"

namespace dsec::engine {
namespace {

std::string text_of(const Json& turn, const char* key) {
  const auto found = turn.find(key);
  if (found == turn.end() || found->is_null()) return "";
  if (!found->is_string()) throw usage_error(quote(key) + " is no text");
  return found->get<std::string>();
}

// What the model is called and cost, where it is told.
void add_model(const Json& document, Json& atif) {
  const Json info = document.value("info", Json::object());
  if (!info.is_object()) return;
  const Json stats = info.value("model_stats", Json::object());
  Json metrics = Json::object();
  for (const auto& [from, to] : {std::pair{"instance_cost", "total_cost_usd"},
                                 {"tokens_sent", "total_prompt_tokens"},
                                 {"tokens_received", "total_completion_tokens"}})
    if (stats.is_object() && stats.contains(from) && stats[from].is_number()) metrics[to] = stats[from];
  if (!metrics.empty()) atif["final_metrics"] = metrics;
}

Json step_of(const Json& turn, const std::string& call_id) {
  if (!turn.is_object()) throw usage_error("it is no object");
  const std::string action = text_of(turn, "action"), thought = text_of(turn, "thought");
  std::string message = text_of(turn, "response");
  Json step = {{"source", "agent"}, {"extra", Json::object()}};
  if (!thought.empty() && thought != message) step["reasoning_content"] = thought;
  step["message"] = std::move(message);
  for (const char* key : {"state", "execution_time", "extra_info"})
    if (turn.contains(key)) step["extra"][key] = turn[key];
  // The model may have said nothing that could be done.
  if (action.empty()) {
    if (const std::string said = text_of(turn, "observation"); !said.empty())
      step["observation"] = {{"results", {{{"content", said}}}}};
    return step;
  }
  step["tool_calls"] = {{{"tool_call_id", call_id}, {"function_name", "bash"}, {"arguments", {{"command", action}}}}};
  step["observation"] = {{"results", {{{"source_call_id", call_id}, {"content", text_of(turn, "observation")}}}}};
  return step;
}

}  // namespace

bool is_swe_agent(const Json& document) {
  return document.is_object() && document.contains("trajectory") && document["trajectory"].is_array();
}

ImportedTrajectory import_swe_agent(const Home& home, const Json& document, TrajectoryHeader header) {
  if (!is_swe_agent(document)) throw usage_error("it has no list 'trajectory'");
  Json atif = {{"schema_version", "ATIF-v1.7"},
               {"agent", {{"name", "SWE-agent"}, {"version", "unknown"}}},
               {"steps", Json::array()},
               {"extra", {{"swe_agent", Json::object()}}}};
  for (const char* key : {"info", "environment", "replay_config"})
    if (document.contains(key)) atif["extra"]["swe_agent"][key] = document[key];
  add_model(document, atif);
  std::size_t number = 0;
  for (const Json& turn : document["trajectory"]) {
    ++number;
    attempt("turn " + std::to_string(number),
            [&] { atif["steps"].push_back(step_of(turn, "call-" + std::to_string(number))); });
  }
  ImportedTrajectory made = import_atif(home, atif, std::move(header));
  made.format = TrajectoryFormat::SweAgent;
  // All that was said before is in each query again, and in the history once more.
  made.left_out.emplace_back("what was sent to the model (query, messages, history)");
  return made;
}

}  // namespace dsec::engine
