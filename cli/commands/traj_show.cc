#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/traj_text.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, operation;
};

std::string duration_text(const Operation& operation) {
  if (!operation.done) return "";
  return format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(operation.done->duration));
}

const Operation& operation_named(const engine::Trajectory& trajectory, const std::string& text) {
  if (const Operation* found = trajectory.find(text)) return *found;
  const auto numbered = std::find_if(trajectory.operations.begin(), trajectory.operations.end(),
                                     [&](const Operation& operation) { return std::to_string(operation.seq) == text; });
  if (numbered == trajectory.operations.end())
    throw usage_error("there is no operation " + quote(text))
        .hint("name it by its number or op-id; dsec traj show lists them");
  return *numbered;
}

void show_one(const engine::Trajectory& trajectory, const Operation& operation, Invocation& call) {
  const engine::SecretMask mask = secret_mask(trajectory);
  Output& out = call.out();
  if (out.json()) return out.json(to_json(trajectory, operation, mask));
  const Operation masked = mask.operation(operation);
  out.line("operation " + std::to_string(masked.seq) + " (" + masked.op_id + "), " + iso_time(masked.started) +
           ", by " + std::string(to_string(masked.origin)));
  out.line(describe_request(masked));
  out.line("request: " + masked.request);
  const std::string took = duration_text(masked);
  out.line(describe_outcome(trajectory, masked) + (took.empty() ? "" : ", " + took));
  if (masked.done) out.line("result: " + masked.done->result);
  for (unsigned stream = 0; stream < 2; ++stream) {
    std::string text;
    trajectory.output(operation, engine::Trajectory::Marks::With, [&](unsigned from, auto, std::string_view data) {
      if (from == stream) text += data;
    });
    if (text.empty()) continue;
    out.line(stream ? "stderr:" : "stdout:");
    text = mask.text(std::move(text));
    out.raw(text.ends_with('\n') ? text : text + "\n");
  }
}

void show_all(const engine::Trajectory& trajectory, Invocation& call) {
  const engine::SecretMask mask = secret_mask(trajectory);
  Output& out = call.out();
  if (out.json()) {
    out.json_line(to_json(mask.header(trajectory.header)));
    for (const Operation& operation : trajectory.operations) out.json_line(to_json(trajectory, operation, mask));
    return;
  }
  const TrajectoryHeader& header = trajectory.header;
  out.line("trajectory " + header.id + ", " + iso_time(header.created) +
           (header.environment.empty() ? "" : ", environment " + printable(header.environment)));
  for (const auto& layer : header.layers) out.line("  " + printable(layer.name) + " " + layer.digest.str());
  if (const std::string loading = describe_loading(trajectory); !loading.empty()) out.line(loading);
  Table table({"SEQ", "OP-ID", "STARTED", "TOOK", "OUTCOME", "OPERATION"});
  for (const Operation& operation : trajectory.operations) {
    const Operation masked = mask.operation(operation);
    table.row({std::to_string(masked.seq), masked.named() ? masked.op_id : "", iso_time(masked.started),
               duration_text(masked), describe_outcome(trajectory, masked), describe_request(masked)});
  }
  out.table(table);
}

void run(const Options& options, Invocation& call) {
  const engine::Trajectory trajectory = find_trajectory(options.sandbox, call.wiring().engine());
  if (options.operation.empty())
    show_all(trajectory, call);
  else
    show_one(trajectory, operation_named(trajectory, options.operation), call);
  if (trajectory.damage.empty()) return;
  call.progress().warn(trajectory.damage + "; what follows is not shown");
  call.exit_with(1);
}

}  // namespace

void add_traj_show(Command& traj) {
  auto options = std::make_shared<Options>();
  Command& verb = traj.verb("show", "Show what was done to a sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("TRAJECTORY", options->sandbox,
                  "Its id, a unique beginning of it, or its name, also when it is gone; or a file");
  verb.optional_positional("OPERATION", options->operation, "Number or op-id: that one, with its output");
  verb.note("Values of secrets are masked. With -o json, the header and then one operation a line.");
  verb.example("dsec traj show web");
  verb.example("dsec traj show web 12");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
