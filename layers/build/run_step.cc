#include "layers/build/run_step.h"

#include <fcntl.h>

#include <deque>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/compose_spec.h"
#include "layers/build/secret_mask.h"
#include "layers/dir/upper_source.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using engine::ExecEvent;

constexpr std::size_t kShownLines = 20;
constexpr std::size_t kLongestLine = 64 << 10;

/// Where the output of a step goes: to the log, line by line to whoever watches, and its end into the error.
class StepOutput {
 public:
  StepOutput(fs::path log, std::string step, const std::vector<std::string>& secrets, Progress& progress)
      : path_(std::move(log)), step_(std::move(step)), progress_(progress), mask_(secrets) {
    make_directories(path_.parent_path(), 0700);
    log_ = open_file(path_, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }

  void take(std::string_view bytes) {
    line_ += bytes;
    for (;;) {
      if (const std::size_t end = line_.find('\n'); end != std::string::npos)
        show(mask_.take(line_, end + 1));
      else if (line_.size() > kLongestLine + mask_.longest())
        show(mask_.take(line_, line_.size() - mask_.longest()));  // the end may be the beginning of a secret
      else
        return;
    }
  }
  void finish() {
    if (!line_.empty()) show(mask_.take(line_, line_.size()));
  }
  const std::deque<std::string>& last() const noexcept { return last_; }
  const fs::path& path() const noexcept { return path_; }

 private:
  void show(std::string line) {
    write_all(log_.get(), line);
    if (line.ends_with('\n')) line.pop_back();
    if (!line.empty() && line.back() == '\r') line.pop_back();
    progress_.output(step_, line);
    last_.push_back(std::move(line));
    if (last_.size() > kShownLines) last_.pop_front();
  }

  fs::path path_;
  std::string step_;
  Progress& progress_;
  UniqueFd log_;
  std::string line_;
  const SecretMask mask_;
  std::deque<std::string> last_;
};

/// The sandbox of a step; removed whatever happens.
class StepSandbox {
 public:
  StepSandbox(engine::LocalEngine& engine, const SandboxSpec& spec) : engine_(engine), id_(engine.create(spec).id) {}
  StepSandbox(const StepSandbox&) = delete;
  ~StepSandbox() {
    try {
      engine_.remove(id_, true);
    } catch (const Error&) {
      // gc removes it: its spec says that it goes when its maker has.
    }
  }
  const std::string& id() const noexcept { return id_; }

 private:
  engine::LocalEngine& engine_;
  std::string id_;
};

SandboxSpec sandbox_of(const RunRequest& request) {
  SandboxSpec spec;
  std::vector<ImageConfig> configs;
  for (const engine::StoredLayer& layer : request.stack) {
    spec.layers.push_back(layer.digest);
    configs.push_back(layer.manifest.config);
  }
  configs.push_back(request.settings);
  spec.config = engine::merge_configs(configs);
  spec.network = request.step.network.mode;
  spec.network_plan = request.step.network.plan;
  spec.labels = {{"dsec.build", request.recipe.ref()}};
  // Each layer was made on those below it, and may well have put a file in the place of a folder.
  spec.accept_conflicts = true;
  spec.made_for_command = true;
  spec.remove_at_end = true;
  // The recipe tells what it did.
  spec.record = false;
  if (request.mounts) {
    spec.binds = request.mounts->binds;
    spec.tmpfs = request.mounts->tmpfs;
  }
  // A fixed name: what a step records of its host must not differ from build to build.
  spec.hostname = "build";
  return spec;
}

ExecSpec command_of(const RunRequest& request) {
  const RunStep& step = request.step;
  ExecSpec command{.argv = step.argv, .workdir = step.workdir, .user = step.user};
  for (const auto& [name, value] : step.env) command.env.push_back(name + "=" + value);
  if (request.mounts)
    for (const auto& [name, value] : request.mounts->secret_env) command.env.push_back(name + "=" + value);
  return command;
}

ExecResult run(engine::Engine& engine, const std::string& id, const ExecSpec& command, StepOutput& output) {
  const std::unique_ptr<engine::ExecStream> stream = engine.exec(id, command);
  while (const std::optional<ExecEvent> event = stream->next()) {
    if (event->kind == ExecEvent::Kind::Exited) {
      output.finish();
      return event->result;
    }
    output.take(event->data);
  }
  throw failure("the command was lost");
}

std::string how_it_ended(const ExecResult& result) {
  switch (result.cause) {
    case ExecResult::Cause::Exited:
      return "the command ended with exit code " + std::to_string(result.exit_code);
    case ExecResult::Cause::OutOfMemory:
      return "the command ran out of memory";
    case ExecResult::Cause::Signalled:
      return "the command was killed by signal " + std::to_string(result.signal);
    default:
      return result.detail.empty() ? "the command could not run" : result.detail;
  }
}

/// The tree of a writable layer without the deletions that delete nothing, and without what mounts left.
class StepTree final : public Source {
 public:
  StepTree(std::unique_ptr<Source> upper, StackLookup& below, const RunRequest& request, engine::LayerStore& store)
      : upper_(std::move(upper)), below_(below) {
    if (!request.mounts || request.mounts->points.empty()) return;
    points_ = request.mounts->points;
    files_below_.emplace(store, request.stack);
  }
  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    return upper_->examine(options, progress);
  }
  void emit(std::size_t image, TreeSink& sink) override {
    NeededDeletions needed(sink, below_);
    if (!files_below_) return upper_->emit(image, needed);
    WithoutMountPoints without(needed, points_, *files_below_);
    upper_->emit(image, without);
  }

 private:
  std::unique_ptr<Source> upper_;
  StackLookup& below_;
  std::set<std::string> points_;
  std::optional<dockerfile::StackOrigin> files_below_;
};

}  // namespace

engine::StoredLayer run_step(const RunRequest& request, StackLookup& below, const BuildOptions& options,
                             const BuildPorts& ports,
                             const std::function<engine::StoredLayer(Source&, SourceFacts)>& make_layer) {
  engine::LocalEngine& engine = ports.engine();
  const std::string step = request.recipe.ref() + " " + request.name;
  StepOutput output(ports.cache.parent_path() / "build-logs" / (request.key.hex().substr(0, 16) + ".log"), step,
                    request.mounts ? request.mounts->secrets : std::vector<std::string>(), ports.progress);
  const StepSandbox sandbox(engine, sandbox_of(request));
  if (request.mounts) request.mounts->begun();
  const ExecSpec command = command_of(request);
  const ExecResult result = run(engine, sandbox.id(), command, output);
  if (result.shell_code() != 0) {
    if (options.on_failure) options.on_failure(engine, sandbox.id(), command);
    Error error = failure(how_it_ended(result));
    for (auto line = output.last().rbegin(); line != output.last().rend(); ++line) error.context("| " + *line);
    throw std::move(error).hint("read the whole output in " + output.path().native());
  }
  engine.stop(sandbox.id(), std::chrono::milliseconds(0));
  const UniqueFd upper = engine.open_writable_layer(sandbox.id());
  StepTree tree(open_upper_source({.upper = "/proc/self/fd/" + std::to_string(upper.get()),
                                   .lower = {},
                                   .scrub = request.scrub,
                                   .ids = {},
                                   .identity = request.key}),
                below, request, ports.store);
  SourceFacts facts = tree.examine({}, ports.progress);
  facts.provenance.source = "build";
  return make_layer(tree, std::move(facts));
}

}  // namespace dsec::layers
