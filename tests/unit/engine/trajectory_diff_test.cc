#include "core/engine/trajectory_diff.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/engine/secrets.h"

namespace dsec::engine {
namespace {

Operation command(const std::string& name, int exit_code = 0, const std::string& out = "", int microseconds = 1) {
  Operation operation;
  operation.kind = "exec";
  ExecSpec spec;
  spec.argv = {name};
  operation.request = canonical_json(exec_request(spec));
  Operation::Done done;
  done.duration = std::chrono::microseconds(microseconds);
  ExecResult result;
  result.exit_code = exit_code;
  result.duration = done.duration;
  result.stdout_bytes = out.size();
  done.result = canonical_json(exec_result_json(result));
  done.stdout_data = out;
  operation.done = done;
  return operation;
}

Trajectory trajectory(std::vector<Operation> operations) {
  Trajectory made;
  for (Operation& operation : operations) {
    operation.seq = made.operations.size() + 1;
    made.operations.push_back(std::move(operation));
  }
  return made;
}

std::string compared(const Trajectory& left, const Trajectory& right) {
  std::string text;
  for (const OperationPair& pair : diff_trajectories(left, right)) {
    text += pair.left ? std::to_string(pair.left->seq) : "-";
    text += pair.same() ? "=" : "!";
    text += pair.right ? std::to_string(pair.right->seq) : "-";
    for (const OperationDifference& difference : pair.differences) text += "(" + difference.what + ")";
    text += " ";
  }
  return text;
}

TEST_CASE("operations are compared by what they did, not by when", "[engine][trajectory]") {
  const Trajectory left = trajectory({command("a", 0, "x", 5), command("b"), command("c", 1, "left")});
  CHECK(compared(left, left) == "1=1 2=2 3=3 ");
  CHECK(compared(left, trajectory({command("a", 0, "x", 999), command("b"), command("c", 2, "right!")})) ==
        "1=1 2=2 3!3(exit_code)(stdout) ");
  Trajectory open = trajectory({command("a", 0, "x")});
  open.operations[0].done.reset();
  CHECK(compared(trajectory({command("a", 0, "x")}), open) == "1!1(outcome) ");
}

TEST_CASE("one operation more or less does not make all that follow differ", "[engine][trajectory]") {
  const Trajectory left = trajectory({command("a"), command("b"), command("c"), command("d")});
  CHECK(compared(left, trajectory({command("a"), command("c"), command("d")})) == "1=1 2!- 3=2 4=3 ");
  CHECK(compared(trajectory({command("a"), command("d")}), left) == "1=1 -!2 -!3 2=4 ");
  CHECK(compared(left, trajectory({command("a"), command("x"), command("c"), command("y")})) ==
        "1=1 2!- -!2 3=3 4!4(request) ");
  CHECK(compared(left, trajectory({})) == "1!- 2!- 3!- 4!- ");
  CHECK(compared(trajectory({}), trajectory({})).empty());
}

TEST_CASE("values of secrets are masked where they are set and wherever they stand", "[engine][trajectory]") {
  SecretMask mask;
  CHECK(mask.is_secret("GITHUB_TOKEN"));
  CHECK(mask.is_secret("apiKey"));
  CHECK_FALSE(mask.is_secret("HOME"));
  mask.learn(std::vector<std::string>{"GITHUB_TOKEN=abcdef123", "PIN_KEY=12", "HOME=/root/home"});
  CHECK(mask.text("it is abcdef123, abcdef123; 12 in /root/home") == "it is ********, ********; 12 in /root/home");
  const Json masked = mask.json({{"env", {"GITHUB_TOKEN=abcdef123", "PIN_KEY=12", "A=abcdef123", "B=2"}},
                                 {"argv", {"echo", "abcdef123"}},
                                 {"raw", {{"base64", "/2FiY2RlZjEyMw=="}}}});
  CHECK(masked["env"] == Json({"GITHUB_TOKEN=********", "PIN_KEY=********", "A=********", "B=2"}));
  CHECK(masked["argv"] == Json({"echo", "********"}));
  CHECK(masked["raw"] == Json({{"base64", "/yoqKioqKioq"}}));
  CHECK(SecretMask({"pin"}).is_secret("MY_PIN"));
  CHECK_FALSE(SecretMask({"pin"}).is_secret("GITHUB_TOKEN"));
}

}  // namespace
}  // namespace dsec::engine
