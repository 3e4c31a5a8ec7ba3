#include "core/engine/atif.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "core/base/error.h"
#include "core/base/iso_time.h"
#include "core/engine/swe_agent.h"
#include "core/engine/trajectory_builder.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;
using std::chrono::microseconds;
using std::chrono::system_clock;

// The rules of the format, each with what it finds wrong.
using Wrong = std::vector<std::string>;
bool only_has(const Json& object, const std::set<std::string>& keys) {
  for (const auto& [key, value] : object.items())
    if (!keys.contains(key)) return false;
  return true;
}
bool text_or_parts(const Json& value) { return value.is_string() || value.is_array(); }

struct Rule {
  const char* name;
  bool (*holds)(const Json& document, const Json& step);
};
const Rule kRootRules[] = {
    {"schema_version is that of a version",
     [](const Json& d, const Json&) {
       return std::regex_match(d.value("schema_version", ""), std::regex("ATIF-v1\\.[0-7]"));
     }},
    {"the root has no other members",
     [](const Json& d, const Json&) {
       return only_has(d, {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics",
                           "continued_trajectory_ref", "extra"});
     }},
    {"the agent has a name and a version",
     [](const Json& d, const Json&) {
       return d.contains("agent") && d["agent"].value("name", "") != "" && d["agent"].value("version", "") != "";
     }},
    {"the agent has no other members",
     [](const Json& d, const Json&) {
       return only_has(d["agent"], {"name", "version", "model_name", "tool_definitions", "extra"});
     }},
    {"there is a step", [](const Json& d, const Json&) { return d.contains("steps") && !d["steps"].empty(); }},
    {"step_id counts from 1",
     [](const Json& d, const Json&) {
       int expected = 0;
       for (const Json& step : d["steps"])
         if (step.value("step_id", 0) != ++expected) return false;
       return true;
     }},
    {"extra is an object", [](const Json& d, const Json&) { return !d.contains("extra") || d["extra"].is_object(); }},
};
const Rule kStepRules[] = {
    {"a step has no other members",
     [](const Json&, const Json& s) {
       return only_has(
           s, {"step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content",
               "tool_calls", "observation", "metrics", "is_copied_context", "llm_call_count", "extra"});
     }},
    {"the source is one of three",
     [](const Json&, const Json& s) {
       return s.value("source", "") == "system" || s["source"] == "user" || s["source"] == "agent";
     }},
    {"there is a message",
     [](const Json&, const Json& s) { return s.contains("message") && text_or_parts(s["message"]); }},
    {"a timestamp is ISO 8601",
     [](const Json&, const Json& s) {
       return !s.contains("timestamp") ||
              std::regex_match(s["timestamp"].get<std::string>(),
                               std::regex("\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)"));
     }},
    {"what only agents have",
     [](const Json&, const Json& s) {
       if (s["source"] == "agent") return true;
       for (const char* key : {"tool_calls", "reasoning_content", "reasoning_effort", "metrics", "model_name"})
         if (s.contains(key)) return false;
       return true;
     }},
    {"calls have an id, a name and arguments",
     [](const Json&, const Json& s) {
       for (const Json& call : s.value("tool_calls", Json::array()))
         if (!call["tool_call_id"].is_string() || !call["function_name"].is_string() ||
             !call["arguments"].is_object() || !only_has(call, {"tool_call_id", "function_name", "arguments", "extra"}))
           return false;
       return true;
     }},
    {"ids of calls are unique in their step",
     [](const Json&, const Json& s) {
       std::set<std::string> ids;
       for (const Json& call : s.value("tool_calls", Json::array()))
         if (!ids.insert(call["tool_call_id"].get<std::string>()).second) return false;
       return true;
     }},
    {"results are of calls of their step, and have content",
     [](const Json&, const Json& s) {
       std::set<std::string> ids;
       for (const Json& call : s.value("tool_calls", Json::array()))
         ids.insert(call["tool_call_id"].get<std::string>());
       const Json observation = s.value("observation", Json::object());
       for (const Json& result : observation.value("results", Json::array())) {
         if (result.contains("source_call_id") && !ids.contains(result["source_call_id"].get<std::string>()))
           return false;
         if (result.contains("content") && !text_or_parts(result["content"])) return false;
         if (!only_has(result, {"source_call_id", "content", "extra"})) return false;
       }
       return true;
     }},
};

Wrong wrong_with(const Json& document) {
  Wrong wrong;
  for (const Rule& rule : kRootRules)
    if (!rule.holds(document, Json())) wrong.emplace_back(rule.name);
  for (const Json& step : document["steps"])
    for (const Rule& rule : kStepRules)
      if (!rule.holds(document, step)) wrong.push_back(std::string(rule.name) + ": " + step.dump());
  return wrong;
}

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  Home home = Home::open(scratch.path() / "home");

  static TrajectoryHeader header(const std::string& source = "atif") {
    TrajectoryHeader header;
    header.created = system_clock::time_point(microseconds(1'700'000'000'000'000));
    header.source = source;
    return header;
  }
  Trajectory imported(const Json& document) const {
    return Trajectory::read(home.trajectories() / import_atif(home, document, header()).id);
  }
  static Json exported(const Trajectory& trajectory) {
    SecretMask mask;
    mask.learn(trajectory);
    std::vector<std::string> left_out;
    return export_atif(trajectory, mask, left_out);
  }
};

// What agents write: of every member something.
Json sample() {
  return parse_json(R"({
    "schema_version": "ATIF-v1.6", "session_id": "s-1", "notes": "n",
    "agent": {"name": "an-agent", "version": "2", "model_name": "m", "extra": {"a": [1, 2.5]}},
    "final_metrics": {"total_cost_usd": 0.25, "total_steps": 4},
    "extra": {"task": "toolz-1"},
    "steps": [
      {"step_id": 1, "source": "system", "message": "You are careful."},
      {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Mend it"}], "timestamp": "2026-01-31T12:00:00Z"},
      {"step_id": 3, "source": "agent", "message": "I look.", "reasoning_content": "hm", "model_name": "m",
       "timestamp": "2026-01-31T12:00:01.5+01:00", "metrics": {"prompt_tokens": 12, "logprobs": [-0.5]},
       "tool_calls": [
         {"tool_call_id": "c1", "function_name": "Bash", "arguments": {"command": "cd /src && ls", "timeout": 5}},
         {"tool_call_id": "c2", "function_name": "shell", "arguments": {"command": ["bash", "-lc", "pwd"], "workdir": "/src"}},
         {"tool_call_id": "c3", "function_name": "edit", "arguments": {"command": "view", "path": "/src/a.py"}}],
       "observation": {"results": [
         {"source_call_id": "c3", "content": [{"type": "text", "text": "line 1"}]},
         {"source_call_id": "c1", "content": "a.py\nb.py"},
         {"source_call_id": "c2", "content": "/src\n", "extra": {"exit": 0}},
         {"content": "and something of nobody's"}]}},
      {"step_id": 4, "source": "agent", "message": "", "tool_calls": [
         {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "python b.py"}}],
       "observation": {"results": [{"content": "one result without an id"}]}}]})",
                    "sample");
}

TEST_CASE("an ATIF document becomes operations", "[engine][atif]") {
  const Fixture f;
  const Trajectory trajectory = f.imported(sample());
  std::vector<std::string> kinds;
  for (const Operation& operation : trajectory.operations) kinds.push_back(operation.kind);
  CHECK(kinds == std::vector<std::string>{"document", "step", "step", "step", "session-open", "session", "exec", "tool",
                                          "step", "session"});
  CHECK(trajectory.output(trajectory.operations[5], 0) == "a.py\nb.py");
  CHECK(exec_spec_of(trajectory.operations[6]).argv == std::vector<std::string>{"bash", "-lc", "pwd"});
  CHECK(exec_spec_of(trajectory.operations[6]).workdir == "/src");
  CHECK(trajectory.output(trajectory.operations[7], 0) == "line 1");
  CHECK(trajectory.output(trajectory.operations[9], 0) == "one result without an id");
  CHECK(trajectory.operations[1].started == trajectory.header.created);
  CHECK(format_iso_time(trajectory.operations[3].started) == "2026-01-31T12:00:00.000000Z");  // none goes back
}

TEST_CASE("an ATIF document comes back as it was", "[engine][atif]") {
  const Fixture f;
  Json document = sample();
  CHECK(wrong_with(document) == Wrong{});
  const Json again = Fixture::exported(f.imported(document));
  CHECK(again == document);
  CHECK(Fixture::exported(f.imported(again)) == document);
}

TEST_CASE("the rules find what is wrong", "[engine][atif]") {
  const auto broken = [](const char* pointer, const Json& value) {
    Json document = sample();
    document[Json::json_pointer(pointer)] = value;
    return wrong_with(document).size();
  };
  CHECK(broken("/schema_version", "1.6") == 1);
  CHECK(broken("/agent/version", "") == 1);
  CHECK(broken("/more", 1) == 1);
  CHECK(broken("/steps/2/step_id", 7) == 1);
  CHECK(broken("/steps/0/source", "tool") == 1);
  CHECK(broken("/steps/0/metrics", Json::object()) == 1);
  CHECK(broken("/steps/1/timestamp", "yesterday") == 1);
  CHECK(broken("/steps/2/tool_calls/1/tool_call_id", "c1") == 2);
  CHECK(broken("/steps/2/observation/results/0/source_call_id", "c9") == 1);
}

TEST_CASE("operations become a valid document and come back", "[engine][atif]") {
  const Fixture f;
  TrajectoryHeader header = Fixture::header("");
  header.id = "abcdef2345672345672345";
  header.layers = {{Digest::of("base"), "base/python:3.11"}};
  header.spec.layers = {Digest::of("base")};
  header.spec.config.env = {"API_TOKEN=hunter2hunter2"};
  TrajectoryBuilder builder(f.home, header);
  const auto add = [&](const std::string& kind, const Json& request, const Json& result, const std::string& out,
                       const std::string& err = "") {
    Operation operation;
    operation.op_id = kind == "exec" ? "" : kind + "-1";
    operation.kind = kind;
    operation.origin = Origin::Cli;
    operation.started = header.created + std::chrono::seconds(builder.operations());
    operation.request = canonical_json(request);
    Operation::Done& done = *(operation.done = Operation::Done{});
    done.time = operation.started;
    done.duration = microseconds(1234);
    done.result = canonical_json(result);
    done.stdout_data = out;
    done.stderr_data = err;
    builder.add(operation);
  };
  ExecSpec spec;
  spec.argv = {"sh", "-c", "echo $API_TOKEN"};
  add("exec", exec_request(spec), exec_result_json({}), "hunter2hunter2\n", "err\xff");
  spec.argv = {"seq", "100000"};
  add("exec", exec_request(spec), exec_result_json({}), std::string(100'000, 'a') + "hunter2hunter2");
  add("pause", Json::object(), Json::object(), "");
  Operation unknown;
  unknown.kind = "resume";
  unknown.started = header.created;
  builder.started(unknown);
  builder.publish();
  const Trajectory before = Trajectory::read(f.home.trajectories() / builder.id());

  const Json document = Fixture::exported(before);
  CHECK(wrong_with(document) == Wrong{});
  CHECK(document.dump(-1, ' ', false, Json::error_handler_t::replace).find("hunter2") == std::string::npos);
  CHECK(document["steps"].size() == 4);
  CHECK(document["steps"][0]["tool_calls"][0]["function_name"] == "exec");
  CHECK_THAT(document["steps"][0]["observation"]["results"][0]["content"].get<std::string>(),
             Catch::Contains("XXXXXXXXXXXXXX\nerr"));

  const Trajectory after = f.imported(document);
  CHECK(after.header.id == header.id);
  CHECK(after.header.layers == header.layers);
  REQUIRE(after.operations.size() == 4);
  CHECK(after.output(after.operations[0], 1) == "err\xff");
  CHECK(after.output(after.operations[1], 0) == std::string(100'000, 'a') + "XXXXXXXXXXXXXX");
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(after.operations[i].request == before.operations[i].request);
    CHECK(after.operations[i].op_id == before.operations[i].op_id);
    CHECK(after.operations[i].done.has_value() == before.operations[i].done.has_value());
  }
  CHECK(after.operations[0].done->duration == microseconds(1234));
}

TEST_CASE("what is no ATIF is refused with its place", "[engine][atif]") {
  const Fixture f;
  struct Case {
    const char* pointer;
    Json value;
    const char* why;
  };
  const Case cases[] = {
      {"/schema_version", 1, "schema_version"},
      {"/agent", "x", "agent"},
      {"/steps", Json::object(), "'steps' is no list"},
      {"/steps", Json::array(), "no steps"},
      {"/steps/0", 7, "step 1"},
      {"/steps/1/source", "robot", "step 2: its source is 'robot'"},
      {"/steps/1/message", 7, "step 2: its message is no text"},
      {"/steps/1/timestamp", "99999-01-01T00:00:00Z", "no ISO 8601 time"},
      {"/steps/2/tool_calls", 7, "'tool_calls' is no list"},
      {"/steps/2/tool_calls/0/arguments", "ls", "no object"},
      {"/steps/2/tool_calls/1/tool_call_id", "c1", "the same id"},
      {"/steps/2/observation/results", 7, "'results' is no list"},
      {"/steps/2/observation/results/0", 7, "no object"},
      {"/steps/2/observation/results/0/source_call_id", "c9", "'c9'"},
      {"/extra", {{"dsec", Json::object()}}, "'header' is missing"},
  };
  for (const Case& one : cases) {
    Json document = sample();
    document[Json::json_pointer(one.pointer)] = one.value;
    std::string message = "nothing";
    try {
      import_atif(f.home, document, Fixture::header());
    } catch (const Error& error) {
      message = error.message();
    }
    INFO(one.pointer);
    CHECK_THAT(message, Catch::Contains(one.why));
    CHECK((!fs::exists(f.home.trajectories()) || fs::is_empty(f.home.trajectories())));
  }
}

TEST_CASE("a trajectory of SWE-agent is read, and is valid ATIF afterwards", "[engine][atif]") {
  const Fixture f;
  const Json document = parse_json(R"({"environment": "main", "info": {"exit_status": "submitted",
    "model_stats": {"instance_cost": 0.5, "tokens_sent": 10, "tokens_received": 3}},
    "history": [{"role": "system", "content": "long"}],
    "trajectory": [
      {"response": "I look.\n```ls```", "thought": "I look.", "action": "cd /src; ls", "observation": "a.py\n",
       "execution_time": 0.25, "state": {"working_dir": "/src"}, "query": [{"role": "user", "content": "long"}]},
      {"response": "No action", "thought": "No action", "action": "", "observation": "say something"},
      {"response": "done", "thought": "done", "action": "submit", "observation": "diff", "execution_time": 1e300}]})",
                                   "sample");
  const ImportedTrajectory made = import_swe_agent(f.home, document, Fixture::header("swe-agent"));
  CHECK(made.left_out.size() == 1);
  const Trajectory trajectory = Trajectory::read(f.home.trajectories() / made.id);
  std::vector<std::string> kinds;
  for (const Operation& operation : trajectory.operations) kinds.push_back(operation.kind);
  CHECK(kinds == std::vector<std::string>{"document", "step", "session-open", "session", "step", "step", "session"});
  CHECK(trajectory.operations[3].done->duration == microseconds(250'000));
  std::string session;
  CHECK(session_command_of(trajectory.operations[3], session).text == "cd /src; ls");
  CHECK(trajectory.output(trajectory.operations[3], 0) == "a.py\n");
  const Json atif = Fixture::exported(trajectory);
  CHECK(wrong_with(atif) == Wrong{});
  CHECK(atif["final_metrics"]["total_cost_usd"] == 0.5);
  CHECK(Fixture::exported(f.imported(atif)) == atif);
  CHECK_THROWS_WITH(import_swe_agent(f.home, {{"trajectory", {7}}}, Fixture::header()), Catch::Contains("turn 1"));
}

TEST_CASE("times are read as ISO 8601 has them", "[engine][atif]") {
  const auto micros = [](std::string_view text) {
    return std::chrono::duration_cast<microseconds>(parse_iso_time(text).time_since_epoch()).count();
  };
  CHECK(micros("1970-01-01T00:00:01Z") == 1'000'000);
  CHECK(micros("1970-01-01T01:00:00.123456789+01:00") == 123'456);
  CHECK(micros("1970-01-01 00:00:00") == 0);
  CHECK(format_iso_time(parse_iso_time("2026-01-31T12:34:56.000007Z")) == "2026-01-31T12:34:56.000007Z");
  for (const char* text : {"", "2026", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00.Z",
                           "2026-01-01T00:00:00+1", "2026-01-01T00:00:00ZZ", "0000-01-01T00:00:00Z"})
    CHECK_THROWS_AS(parse_iso_time(text), Error);
}

}  // namespace
}  // namespace dsec::engine
