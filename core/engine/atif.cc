#include "core/engine/atif.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/iso_time.h"
#include "core/base/json_bytes.h"
#include "core/base/version.h"
#include "core/engine/masked_output.h"
#include "core/engine/trajectory_builder.h"

namespace dsec::engine {
namespace {
using std::chrono::microseconds;
using std::chrono::system_clock;

constexpr std::string_view kVersionBegin = "ATIF-v1.", kWritten = "ATIF-v1.7";
// The session that commands of a foreign trajectory run in.
constexpr const char* kSession = "imported";
// Of an operation's output and input more has no place in a document.
constexpr std::size_t kMostText = 4u << 20;
// What was imported was no longer.
constexpr std::size_t kMostDocumentText = 64u << 20;

// What agents call a tool that gives its argument to a shell.
constexpr std::string_view kShells[] = {
    "bash",        "sh",           "shell",       "execute_bash",  "run_bash", "run_command",       "exec",
    "execute",     "bash_command", "local_shell", "shell_command", "terminal", "run_shell_command", "execute_command",
    "exec_command"};

const Json& member(const Json& object, const char* key) {
  if (!object.is_object()) throw usage_error("it is no object");
  const auto found = object.find(key);
  if (found == object.end()) throw usage_error(quote(key) + " is missing");
  return *found;
}

void check_list(const Json& object, const char* key) {
  if (!member(object, key).is_array()) throw usage_error(quote(key) + " is no list");
}

void check_step(const Json& step) {
  const std::string source = json_string(step, "source");
  if (source != "system" && source != "user" && source != "agent")
    throw usage_error("its source is " + quote(source) + ", not system, user or agent");
  const Json& message = member(step, "message");
  if (!message.is_string() && !message.is_array()) throw usage_error("its message is no text");
  std::set<std::string> ids;
  if (step.contains("tool_calls") && !step["tool_calls"].is_null()) {
    check_list(step, "tool_calls");
    for (const Json& call : step["tool_calls"]) {
      json_string(call, "function_name");
      if (!ids.insert(json_string(call, "tool_call_id")).second) throw usage_error("two of its calls have the same id");
      if (!member(call, "arguments").is_object()) throw usage_error("the arguments of a call are no object");
    }
  }
  if (!step.contains("observation") || step["observation"].is_null()) return;
  check_list(step["observation"], "results");
  for (const Json& result : step["observation"]["results"]) {
    if (!result.is_object()) throw usage_error("a result is no object");
    const std::string of = json_string_or(result, "source_call_id", "");
    if (!of.empty() && !ids.contains(of)) throw usage_error("a result is of a call " + quote(of) + " that it has not");
  }
}

// The text that a result says; of one with pictures what it says beside them.
std::string text_of(const Json& result) {
  const auto content = result.find("content");
  if (content == result.end()) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  if (content->is_array())
    for (const Json& part : *content)
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        text += part["text"].get_ref<const std::string&>();
  return text;
}

// The place among the results of the one that a call gave.
std::optional<std::size_t> result_of(const Json& step, const std::string& call_id) {
  if (!step.contains("observation") || step["observation"].is_null()) return std::nullopt;
  const Json& results = step["observation"]["results"];
  for (std::size_t i = 0; i < results.size(); ++i)
    if (json_string_or(results[i], "source_call_id", "") == call_id) return i;
  // Older versions leave out whose it is where there is but one.
  if (results.size() == 1 && step["tool_calls"].size() == 1 && !results[0].contains("source_call_id")) return 0;
  return std::nullopt;
}

class Import {
 public:
  Import(const Home& home, const Json& document, TrajectoryHeader header)
      : document_(document), header_(own_header(document, std::move(header))), builder_(home, header_) {}

  ImportedTrajectory run() {
    const bool own = is_own(document_);
    time_ = header_.created;
    if (!own) {
      Json root = document_;
      root.erase("steps");
      add("document", {{"format", header_.source}}, {{"document", root}});
    }
    std::size_t number = 0;
    for (const Json& step : document_["steps"]) {
      ++number;
      attempt("step " + std::to_string(number), [&] {
        check_step(step);
        if (own && step.contains("extra") && step["extra"].is_object() && step["extra"].contains("dsec"))
          take_own(step["extra"]["dsec"]);
        else
          take(step);
      });
    }
    builder_.publish();
    return {builder_.id(), TrajectoryFormat::Atif, builder_.operations(), {}};
  }

  static bool is_own(const Json& document) {
    const auto extra = document.find("extra");
    return extra != document.end() && extra->is_object() && extra->contains("dsec") && (*extra)["dsec"].is_object();
  }

 private:
  // What export_atif wrote tells what the sandbox was made of.
  static TrajectoryHeader own_header(const Json& document, TrajectoryHeader given) {
    if (!is_atif(document)) throw usage_error("it has no schema_version of ATIF");
    attempt("agent", [&] {
      json_string(member(document, "agent"), "name");
      json_string(document["agent"], "version");
    });
    check_list(document, "steps");
    if (document["steps"].empty()) throw usage_error("it has no steps");
    if (!is_own(document)) return given;
    TrajectoryHeader own = trajectory_header_from(member(document["extra"]["dsec"], "header"));
    check_trajectory_id(own.id);
    own.spec.name = given.spec.name;
    own.source = given.source;
    if (own.layers.empty()) own.layers = given.layers, own.spec.layers = given.spec.layers;
    return own;
  }

  void take_own(const Json& step) {
    Operation operation = operation_from(member(step, "started"));
    operation.seq = 0;
    if (!step.contains("done")) return builder_.started(std::move(operation));
    operation.done = done_from(step["done"]);
    operation.done->output.clear();
    operation.done->stdin_file.reset();
    if (operation.done->content) operation.done->content->name.clear();
    builder_.add(std::move(operation));
  }

  void take(Json step) {
    if (const std::string stamp = json_string_or(step, "timestamp", ""); !stamp.empty())
      // Operations are done one after the other.
      time_ = std::max(time_, parse_iso_time(stamp));
    Json request = {{"source", step["source"]}, {"message", step["message"]}};
    if (step.contains("reasoning_content")) request["reasoning_content"] = step["reasoning_content"];

    std::vector<Operation> calls;
    if (step.contains("tool_calls") && step["tool_calls"].is_array())
      for (const Json& call : step["tool_calls"]) calls.push_back(operation_of(call, step));
    for (const char* key : {"source", "message", "reasoning_content", "step_id"}) step.erase(key);
    add("step", request, {{"step", step}});
    for (Operation& operation : calls) {
      if (operation.kind == "session" && !std::exchange(session_, true)) {
        SessionSpec spec;
        spec.name = kSession;
        add("session-open", session_open_request(spec), {{"session", kSession}, {"made_by", "import"}});
      }
      builder_.add(std::move(operation));
    }
  }

  // What the call gave goes from the step into the operation.
  Operation operation_of(const Json& call, Json& step) const {
    const Json& arguments = call["arguments"];
    const std::string id = json_string(call, "tool_call_id");
    Json result = {{"call", {{"id", id}}}};
    Operation operation = begun("tool");
    operation.request = canonical_json({{"function", call["function_name"]}, {"arguments", arguments}});
    if (const auto command = command_of(call)) {
      operation.kind = command->is_array() ? "exec" : "session";
      result["cause"] = "unknown";
      // Both streams as one, without the exit code: harnesses keep no more.
      result["combined"] = true;
      if (command->is_array()) {
        ExecSpec spec;
        for (const Json& word : *command) spec.argv.push_back(word.get<std::string>());
        if (arguments.contains("workdir") && arguments["workdir"].is_string())
          spec.workdir = arguments["workdir"].get<std::string>();
        operation.request = canonical_json(exec_request(spec));
      } else {
        SessionCommand text;
        text.text = command->get<std::string>();
        operation.request = canonical_json(session_request(kSession, text));
      }
    }
    Operation::Done& done = operation.done.value();
    if (const auto place = result_of(step, id)) {
      Json& from = step["observation"]["results"][*place];
      result["call"]["result"] = *place;
      done.stdout_data = text_of(from);
      if (from.contains("content") && from["content"].is_string()) from.erase("content");
    }
    done.result = canonical_json(result);
    // SWE-agent tells how long a command took, in seconds.
    const Json extra = step.value("extra", Json::object());
    if (step["tool_calls"].size() == 1 && extra.is_object() && extra.contains("execution_time") &&
        extra["execution_time"].is_number())
      if (const double seconds = extra["execution_time"].get<double>(); seconds > 0 && seconds < 1e6)
        done.duration = microseconds(static_cast<std::int64_t>(seconds * 1e6));
    return operation;
  }

  // Text for a shell, or words of a command; null when it is a call of something else.
  static const Json* command_of(const Json& call) {
    std::string name = json_string(call, "function_name");
    for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    if (std::find(std::begin(kShells), std::end(kShells), name) == std::end(kShells)) return nullptr;
    for (const char* key : {"command", "cmd"}) {
      const auto found = call["arguments"].find(key);
      if (found == call["arguments"].end()) continue;
      if (found->is_string() && found->get_ref<const std::string&>().find('\0') == std::string::npos) return &*found;
      const auto is_word = [](const Json& word) {
        return word.is_string() && word.get_ref<const std::string&>().find('\0') == std::string::npos;
      };
      if (found->is_array() && !found->empty() && std::all_of(found->begin(), found->end(), is_word)) return &*found;
    }
    return nullptr;
  }

  Operation begun(const char* kind) const {
    Operation operation;
    operation.kind = kind;
    operation.started = time_;
    operation.done = Operation::Done{};
    operation.done->time = time_;
    return operation;
  }
  void add(const char* kind, const Json& request, const Json& result) {
    Operation operation = begun(kind);
    operation.request = canonical_json(request);
    operation.done->result = canonical_json(result);
    builder_.add(std::move(operation));
  }

  const Json& document_;
  const TrajectoryHeader header_;
  TrajectoryBuilder builder_;
  system_clock::time_point time_;
  bool session_ = false;
};

class Export {
 public:
  Export(const Trajectory& trajectory, const SecretMask& mask)
      : trajectory_(trajectory), mask_(mask.with(SecretMask::Form::SameLength)) {}

  Json run(std::vector<std::string>& left_out) {
    root_ = {{"schema_version", kWritten},
             {"session_id", trajectory_.header.id},
             {"trajectory_id", trajectory_.header.id},
             {"agent", {{"name", "dsec"}, {"version", kVersion}}},
             {"extra", {{"dsec", {{"header", parse_json(to_line(mask_.header(trajectory_.header)), "header")}}}}}};
    for (const Operation& operation : trajectory_.operations) take(operation);
    if (steps_.empty()) throw usage_error("nothing was done in it, and ATIF has no trajectory without a step");
    std::uint64_t number = 0;
    for (Json& step : steps_) step["step_id"] = ++number;
    root_["steps"] = std::move(steps_);
    if (contents_) left_out.push_back(std::to_string(contents_) + " archives of files that were copied");
    if (cut_) left_out.push_back(std::to_string(cut_) + " inputs that are longer than 4 MiB");
    return std::move(root_);
  }

 private:
  void take(const Operation& recorded) {
    const Operation operation = mask_.operation(recorded);
    const Json request = parse_json(operation.request, "request");
    const Json result = operation.done ? parse_json(operation.done->result, "result") : Json::object();
    if (operation.kind == "document" && result.contains("document") && result["document"].is_object()) {
      root_ = result["document"];
    } else if (operation.kind == "step" && result.contains("step") && result["step"].is_object()) {
      Json step = result["step"];
      step.update(request);
      steps_.push_back(std::move(step));
    } else if (result.contains("call") && !steps_.empty()) {
      give_back(recorded, result["call"]);
    } else if (json_string_or(result, "made_by", "") != "import") {
      steps_.push_back(step_of(recorded, operation));
    }
  }

  void give_back(const Operation& recorded, const Json& call) {
    const auto place = call.find("result");
    if (place == call.end() || !place->is_number_unsigned()) return;
    Json& step = steps_.back();
    if (!step.contains("observation") || !step["observation"].is_object()) return;
    Json& results = step["observation"]["results"];
    const auto number = place->get<std::size_t>();
    if (!results.is_array() || number >= results.size() || results[number].contains("content")) return;
    std::string text;
    for (const OutputPiece& piece : masked_output(trajectory_, recorded, mask_, kMostDocumentText)) text += piece.data;
    results[number]["content"] = utf8(text);
  }

  Json step_of(const Operation& recorded, Operation operation) {
    const std::string id = "op-" + std::to_string(operation.seq);
    Json dsec = {{"started", parse_json(started_line(operation), "record")}};
    Json step = {{"source", "agent"},
                 {"message", ""},
                 {"timestamp", format_iso_time(operation.started)},
                 {"tool_calls",
                  {{{"tool_call_id", id},
                    {"function_name", operation.kind},
                    {"arguments", parse_json(operation.request, "request")}}}}};
    if (operation.done) {
      Operation::Done& done = *operation.done;
      const std::vector<OutputPiece> output = masked_output(trajectory_, recorded, mask_, kMostText);
      std::string text;
      for (const OutputPiece& piece : output) text += piece.data;
      if (done.outcome == Operation::Outcome::Failed) text = failure_of(done.result);
      step["observation"] = {{"results", {{{"source_call_id", id}, {"content", utf8(text)}}}}};
      if (!done.output.empty()) {
        done.output.clear();
        done.stdout_data = before_marks(output, 0);
        done.stderr_data = before_marks(output, 1);
      }
      if (done.stdin_file) {
        done.stdin_file.reset();
        done.stdin_data = mask_.text(trajectory_.input(recorded));
        if (done.stdin_data.size() > kMostText) done.stdin_data.clear(), ++cut_;
      }
      if (done.content && !done.content->name.empty()) {
        done.content->name.clear();
        ++contents_;
      }
      dsec["done"] = parse_json(done_line(operation), "record");
    }
    step["extra"] = {{"dsec", dsec}};
    return step;
  }

  // What is told of an output whose middle is missing is compared up to there.
  std::string before_marks(const std::vector<OutputPiece>& output, unsigned stream) {
    std::string head;
    for (const OutputPiece& piece : output) {
      if (piece.stream != stream) continue;
      if (piece.mark) return head;
      head += piece.data;
    }
    return head;
  }

  static std::string failure_of(const std::string& result) {
    std::string text;
    const Json json = parse_json(result, "result");
    for (const Json& cause : json.value("error", Json::object()).value("chain", Json::array()))
      if (cause.is_string()) text += (text.empty() ? "error: " : ": ") + cause.get<std::string>();
    return text;
  }

  // JSON has no other text.
  static std::string utf8(const std::string& text) {
    return is_utf8(text) ? text : parse_json(canonical_json(text), "text").get<std::string>();
  }

  const Trajectory& trajectory_;
  const SecretMask mask_;
  Json root_;
  std::vector<Json> steps_;
  std::uint64_t contents_ = 0, cut_ = 0;
};

}  // namespace

bool is_atif(const Json& document) {
  if (!document.is_object()) return false;
  const auto version = document.find("schema_version");
  return version != document.end() && version->is_string() &&
         version->get_ref<const std::string&>().starts_with(kVersionBegin);
}

ImportedTrajectory import_atif(const Home& home, const Json& document, TrajectoryHeader header) {
  return Import(home, document, std::move(header)).run();
}

Json export_atif(const Trajectory& trajectory, const SecretMask& mask, std::vector<std::string>& left_out) {
  return Export(trajectory, mask).run(left_out);
}

}  // namespace dsec::engine
