#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/version.h"
#include "core/engine/trajectory_import.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string file, format, name;
  SandboxFlags sandbox;
};

// What a replay makes its sandbox of.
TrajectoryHeader header(const Options& options, Invocation& call) {
  TrajectoryHeader header;
  header.dsec = kVersion;
  if (options.sandbox.what.empty()) return header;
  header.spec = compose(call, options.sandbox);
  header.environment = header.spec.environment;
  for (const Digest& layer : header.spec.layers) {
    const engine::StoredLayer stored = call.wiring().layer_store().get(LayerRef::of(layer));
    header.layers.push_back({layer, stored.tags.empty() ? stored.manifest.name.str() : stored.tags.front()});
  }
  return header;
}

void run(const Options& options, Invocation& call) {
  engine::ImportOptions wanted{.format = {}, .header = header(options, call), .name = options.name};
  for (const auto format :
       {engine::TrajectoryFormat::Dsec, engine::TrajectoryFormat::Atif, engine::TrajectoryFormat::SweAgent})
    if (options.format == to_string(format)) wanted.format = format;
  const engine::ImportedTrajectory made = engine::import_trajectory(call.wiring().home(), options.file, wanted);
  for (const std::string& what : made.left_out) call.progress().warn("left out: " + what);
  call.end_progress();
  if (!call.out().json()) return call.out().line(made.id);
  call.out().json({{"id", made.id},
                   {"format", to_string(made.format)},
                   {"operations", made.operations},
                   {"left_out", made.left_out}});
}

}  // namespace

void add_traj_import(Command& traj) {
  auto options = std::make_shared<Options>();
  Command& verb = traj.verb("import", "Take a trajectory from a file: an export, ATIF, or SWE-agent's");
  verb.positional("FILE", options->file, "The file");
  verb.choice("--format", options->format, {"dsec", "atif", "swe-agent"}, "What it is (default: what it looks like)");
  verb.option("--name", "NAME", options->name, "Name to call it by");
  verb.options("--in", "ENV|REF", options->sandbox.what,
               "What a replay runs it in, where the file does not tell: an environment of dsec.yaml, or layers");
  verb.option("-f,--file", "FILE", options->sandbox.file, "Where the environment is described (default: dsec.yaml)");
  verb.option("-w,--workdir", "PATH", options->sandbox.workdir, "Directory that commands start in");
  verb.note("It gets an id of its own, and is listed, shown, compared, replayed and reported like any other.");
  verb.example("dsec traj import web.jsonl --name theirs");
  verb.example("dsec traj import toolz-1.traj --in toolz-1");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
