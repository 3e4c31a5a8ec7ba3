#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/function_flags.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/root.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "core/engine/judge.h"

namespace dsec::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  FunctionFlags function;
  std::string cases, compare = "tokens", checker;
  std::optional<double> tolerance;
  std::vector<std::string> files, args;
  bool all = false;
};

struct Case {
  std::string name;
  fs::path input, expected;
};

// "2" before "10".
bool natural_less(const Case& a, const Case& b) {
  const auto number = [](const std::string& text) {
    return !text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string::npos
               ? std::optional(std::stoull(text))
               : std::nullopt;
  };
  const auto left = number(a.name), right = number(b.name);
  return left && right && *left != *right ? *left < *right : a.name < b.name;
}

std::vector<Case> cases_in(const fs::path& directory) {
  std::vector<Case> cases;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".in") continue;
    Case made{entry.path().stem().native(), entry.path(), ""};
    for (const char* extension : {".out", ".ans"})
      if (const fs::path path = fs::path(entry.path()).replace_extension(extension); fs::exists(path))
        made.expected = path;
    if (made.expected.empty())
      throw usage_error("case " + quote(entry.path().native()) + " has no expected output")
          .hint("put it into " + quote(made.name + ".out") + " or " + quote(made.name + ".ans") + " beside it");
    cases.push_back(std::move(made));
  }
  if (error) throw usage_error("read cases in " + quote(directory.native()) + ": " + error.message());
  if (cases.empty()) throw usage_error("there is no case (*.in) in " + quote(directory.native()));
  std::sort(cases.begin(), cases.end(), natural_less);
  return cases;
}

struct Judgement {
  std::string verdict;  // of a run, or wrong-answer or compile-error
  std::string detail;
  FunctionResult result;
};

class Judge {
 public:
  Judge(Invocation& call, const Options& options)
      : type_(find_function(call, options.function, options.function.type)),
        pool_(call.wiring().local_engine(), call.wiring().home(), type_),
        functions_(call.wiring().local_engine(), call.wiring().home(), pool_.refill()) {
    if (!options.checker.empty()) checker_ = find_function(call, options.function, options.checker);
    comparison_.how = options.compare == "exact"    ? engine::Comparison::How::Exact
                      : options.compare == "floats" ? engine::Comparison::How::Floats
                                                    : engine::Comparison::How::Tokens;
    if (options.tolerance) comparison_.tolerance = *options.tolerance;
    call_.args = options.args;
    for (const std::string& file : options.files) call_.files.push_back(read_function_file(file));
    if (!type_.spec.compile.empty()) compiled_ = functions_.compile(type_, call_, artefact_);
  }

  Judgement judge(const Case& of) {
    if (compiled_ && compiled_->verdict != Verdict::Ok)
      return {compiled_->verdict == Verdict::Infra ? "infra" : "compile-error",
              compiled_->detail.empty() ? compiled_->errors : compiled_->detail, *compiled_};
    call_.input = read_file(of.input);
    Judgement made{"", "", functions_.run(type_, call_, artefact_)};
    made.verdict = to_string(made.result.verdict);
    made.detail = made.result.detail;
    if (made.result.verdict != Verdict::Ok) return made;
    if (checker_) {
      check(of, made);
    } else if (auto difference = engine::first_difference(comparison_, read_file(of.expected), made.result.output)) {
      made.verdict = "wrong-answer";
      made.detail = *std::move(difference);
    }
    return made;
  }

 private:
  void check(const Case& of, Judgement& made) {
    FunctionCall question;
    question.files = {{"input", call_.input}, {"expected", read_file(of.expected)}, {"output", made.result.output}};
    const FunctionResult answer = functions_.call(*checker_, question);
    if (answer.verdict == Verdict::Ok) return;
    made.detail = answer.output.empty() ? answer.errors : answer.output;
    if (answer.verdict == Verdict::RuntimeError && answer.stage == "run" && answer.result.exit_code == 1) {
      made.verdict = "wrong-answer";
    } else {
      // What the checker cannot tell says nothing of the program.
      made.verdict = "infra";
      made.detail = "the checker ended with " + std::string(to_string(answer.verdict)) +
                    (made.detail.empty() ? "" : ": " + made.detail);
    }
  }

  const FunctionType type_;
  std::optional<FunctionType> checker_;
  PoolThread pool_;
  engine::Functions functions_;
  engine::Comparison comparison_;
  FunctionCall call_;
  engine::FunctionArtefact artefact_;
  std::optional<FunctionResult> compiled_;
};

std::string first_line(const std::string& text) {
  return printable(text.substr(0, std::min(text.find('\n'), text.size())));
}

void run(const Options& options, Invocation& call) {
  require_root("fn judge");
  const std::vector<Case> cases = cases_in(options.cases);
  Judge judge(call, options);
  Table table({"CASE", "VERDICT", "TIME", "CPU", "MEMORY", "DETAIL"});
  std::size_t accepted = 0;
  bool infra = false;
  for (const Case& each : cases) {
    const Judgement made = judge.judge(each);
    const FunctionResult& result = made.result;
    accepted += made.verdict == "ok";
    infra = infra || made.verdict == "infra";
    if (call.out().json()) {
      Json json = to_json(result);
      json["case"] = each.name;
      json["verdict"] = made.verdict;
      json["detail"] = made.detail;
      call.out().json_line(json);
    } else {
      const auto ms = [](std::chrono::microseconds time) {
        return format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(time));
      };
      table.row({each.name, made.verdict, ms(result.time), ms(result.cpu_time), format_size(result.memory_peak),
                 first_line(made.detail)});
    }
    if (made.verdict != "ok" && !options.all) break;
  }
  if (!call.out().json()) {
    call.out().table(table);
    call.out().line(std::to_string(accepted) + " of " + std::to_string(cases.size()) + " cases accepted");
  }
  call.exit_with(infra ? kFailed : accepted == cases.size() ? kOk : kDifference);
}

}  // namespace

void add_fn_judge(Command& fn) {
  auto options = std::make_shared<Options>();
  Command& verb = fn.verb("judge", "Run a program on many inputs and compare what it writes");
  verb.reaches(Command::Reach::Local);
  verb.positional("TYPE", options->function.type, "Function of dsec.yaml");
  declare(verb, options->function);
  verb.option("--cases", "DIR", options->cases, "Folder with NAME.in and NAME.out (or NAME.ans) for each case");
  verb.choice("--compare", options->compare, {"exact", "tokens", "floats"}, "How outputs are compared");
  verb.decimal("--tolerance", options->tolerance, "Of floats, absolute or relative (default: 0.000001)");
  verb.option("--checker", "TYPE", options->checker,
              "Function that judges instead: it finds the files input, output and expected, and exits with 0 or 1");
  verb.options("--file", "[NAME=]PATH", options->files, "Put a file into the workdir of each call");
  verb.flag("--all", options->all, "Go on after the first case that is not accepted");
  verb.takes_command(options->args);
  verb.note(
      "Compiles once. Exits with 0 when all cases are accepted, 3 when one is not, 1 when one could not be judged.");
  verb.example("dsec fn judge c --file main.c=solution.c --cases tests/ --all");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
