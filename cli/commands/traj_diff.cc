#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/traj_text.h"
#include "cli/wiring.h"
#include "core/base/json_bytes.h"
#include "core/engine/trajectory_diff.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string left, right;
};

// The part of a text from the first line that the other does not have, in one line.
std::string excerpt(const std::string& text, const std::string& other) {
  constexpr std::size_t kMost = 160;
  std::size_t line = 0, from = 0;
  for (std::size_t i = 0; i < text.size() && i < other.size() && text[i] == other[i]; ++i)
    if (text[i] == '\n') ++line, from = i + 1;
  std::string part = text.substr(from, text.find('\n', from) - from);
  if (part.size() > kMost) part = part.substr(0, kMost) + "…";
  return (text.find('\n') == std::string::npos ? "" : "line " + std::to_string(line + 1) + ": ") + printable(part);
}

std::string number(const Operation* operation) { return operation ? std::to_string(operation->seq) : "-"; }

Json pair_json(const engine::OperationPair& pair, const engine::SecretMask& mask) {
  Json json = {{"left", pair.left ? Json(pair.left->seq) : Json(nullptr)},
               {"right", pair.right ? Json(pair.right->seq) : Json(nullptr)},
               {"same", pair.same()},
               {"differences", Json::array()}};
  for (const auto& difference : pair.differences)
    json["differences"].push_back({{"what", difference.what},
                                   {"left", json_bytes(mask.text(difference.left))},
                                   {"right", json_bytes(mask.text(difference.right))}});
  return json;
}

void show_pair(const engine::OperationPair& pair, const engine::SecretMask& mask, Output& out) {
  const Operation masked = mask.operation(pair.left ? *pair.left : *pair.right);
  const char* const sign = pair.same() ? "= " : !pair.right ? "- " : !pair.left ? "+ " : "! ";
  out.line(sign + number(pair.left) + " " + number(pair.right) + " " + describe_request(masked));
  for (const auto& difference : pair.differences) {
    const std::string left = mask.text(difference.left), right = mask.text(difference.right);
    out.line("    " + difference.what + ":");
    out.line("      - " + excerpt(left, right));
    out.line("      + " + excerpt(right, left));
  }
}

void run(const Options& options, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  const engine::Trajectory left = find_trajectory(options.left, engine), right = find_trajectory(options.right, engine);
  engine::SecretMask mask = secret_mask(left);
  mask.learn(right);
  std::size_t different = 0;
  for (const engine::OperationPair& pair : engine::diff_trajectories(left, right)) {
    different += !pair.same();
    if (call.out().json())
      call.out().json_line(pair_json(pair, mask));
    else
      show_pair(pair, mask, call.out());
  }
  for (const engine::Trajectory* trajectory : {&left, &right})
    if (!trajectory->damage.empty()) call.progress().warn(trajectory->damage + "; what follows is not compared");
  if (different) call.exit_with(kDifference);
}

}  // namespace

void add_traj_diff(Command& traj) {
  auto options = std::make_shared<Options>();
  Command& verb = traj.verb("diff", "Compare two trajectories operation by operation");
  verb.reaches(Command::Reach::Context);
  verb.positional("TRAJECTORY", options->left,
                  "Its id, a unique beginning of it, or its name, also when it is gone; or a file");
  verb.positional("OTHER", options->right, "The same");
  verb.note(
      "A line for each operation: = the same, ! with another request or result, - only in TRAJECTORY, + only in OTHER. "
      "Times do not count. Exit code 3 when there is a difference.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
