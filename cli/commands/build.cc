#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/attend.h"
#include "cli/build_secrets.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/fetch.h"
#include "cli/invocation.h"
#include "cli/project_flags.h"
#include "cli/sandbox_flags.h"
#include "cli/terminal.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/build/builder.h"
#include "layers/build/environments.h"
#include "layers/build/references.h"

namespace dsec::cli {
namespace {

struct Options {
  ProjectFlags project;
  std::vector<std::string> targets, registries, secrets;
  std::optional<std::uint64_t> jobs;
  bool no_cache = false, locked = false, shell = false, pull = false;
  std::optional<bool> offline;
};

// Where the step left its sandbox, as the step saw it.
void open_shell(engine::Engine& engine, const std::string& id, const ExecSpec& failed) {
  ExecSpec spec{.argv = {"/bin/sh"}, .env = failed.env, .workdir = failed.workdir, .user = failed.user};
  apply({.interactive = true, .tty = true, .detach = false, .timeout = std::nullopt}, false, spec);
  const ForwardedSignals signals;
  const std::unique_ptr<engine::ExecStream> stream = engine.exec(id, spec);
  attend(*stream, {.tty = true, .stdin_open = true});
}

layers::BuildOptions build_options(const Options& options, Invocation& call) {
  const bool offline = is_offline(options.offline);
  if (options.pull && (options.locked || offline))
    throw usage_error("--pull asks registries for newer images, which --locked and --offline do not want");
  if (options.shell && !on_terminal()) throw usage_error("--shell-on-failure needs a terminal");
  layers::BuildOptions out{.targets = options.targets,
                           .no_cache = options.no_cache,
                           .offline = offline,
                           .locked = options.locked,
                           .pull = options.pull,
                           .secrets = parse_secrets(options.secrets),
                           .jobs = options.jobs.value_or(std::max(1u, std::thread::hardware_concurrency()))};
  if (options.shell)
    out.on_failure = [&call](engine::Engine& engine, const std::string& id, const ExecSpec& failed) {
      call.progress().warn("the step failed: this shell is in its sandbox, which goes when the shell ends");
      open_shell(engine, id, failed);
    };
  return out;
}

void tell(Output& out, const std::vector<layers::BuildOutcome>& outcomes) {
  Table table({"LAYER", "DIGEST", "SIZE", "RESULT", "TIME"});
  for (const auto& outcome : outcomes) {
    const std::string result = outcome.kind == layers::BuildOutcome::Kind::Built ? "built" : "cached";
    if (out.json())
      out.json_line({{"ref", outcome.ref},
                     {"digest", outcome.layer.digest.str()},
                     {"bytes", outcome.layer.manifest.total_size()},
                     {"result", result},
                     {"steps", outcome.steps},
                     {"cached_steps", outcome.cached_steps},
                     {"duration_ms", outcome.duration.count()}});
    else
      table.row({outcome.ref, outcome.layer.digest.brief(), format_size(outcome.layer.manifest.total_size()), result,
                 format_duration(outcome.duration)});
  }
  if (!out.json()) out.table(table);
}

// What cannot be had is told with its place in the file by the build.
void pull_for_build(Invocation& call, const LayerRef& ref, std::span<const std::string> registries) {
  try {
    find_or_pull(call, {&ref, 1}, registries);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Usage) throw;
    if (error.chain().size() > 1) call.progress().warn(error.chain().front());
  }
}

void run(const Options& options, Invocation& call) {
  const layers::Project project = load(options.project);
  Wiring& wiring = call.wiring();
  const std::vector<layers::BuildOutcome> outcomes =
      layers::build(project, build_options(options, call),
                    {.store = wiring.layer_store(),
                     .engine = [&wiring]() -> engine::LocalEngine& { return wiring.local_engine(); },
                     .cache = wiring.home().cache() / "build",
                     .progress = call.progress(),
                     .pull = [&](const LayerRef& ref) { pull_for_build(call, ref, options.registries); },
                     .images = wiring.images()});
  // Nothing that was built needs them, but who runs the environment will.
  for (const layers::Problem& problem : layers::dangling_references(
           project, wiring.layer_store(), [&](const auto& other) { return project.environment(other.by) != nullptr; }))
    call.progress().warn(to_string(project.file, problem));
  for (const std::string& text : layers::built_on_drift(project, wiring.layer_store())) call.progress().warn(text);
  call.end_progress();
  tell(call.out(), outcomes);
}

}  // namespace

void add_build(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("build", "Build the layers of dsec.yaml, and pin them in dsec.lock");
  verb.positionals("TARGET", options->targets, "Layers or environments (default: everything)", 0);
  declare(verb, options->project);
  verb.options("--registry", "NAME|URL", options->registries,
               "Pull layers that are not here from there (default: the configured ones)");
  verb.flag("--no-cache", options->no_cache, "Make every step and layer again");
  declare_offline(verb, options->offline);
  verb.flag("--pull", options->pull, "Ask registries whether the images that Dockerfiles are FROM have moved");
  verb.options("--secret", "id=NAME,src=FILE", options->secrets,
               "A secret for RUN --mount=type=secret; also id=NAME,env=VARIABLE");
  verb.flag("--locked", options->locked, "Refuse a result that dsec.lock does not pin, and leave dsec.lock alone");
  verb.flag("--shell-on-failure", options->shell, "Open a shell in the sandbox of a step that failed");
  verb.number("-j,--jobs", options->jobs, "Layers built at the same time (default: the number of CPUs)");
  verb.note("With -o json, one object a layer and line.");
  verb.example("dsec build");
  verb.example("dsec build toolz-1 --arg VERSION=3.11");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
