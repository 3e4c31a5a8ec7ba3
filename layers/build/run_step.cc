#include "layers/build/run_step.h"

#include <fcntl.h>

#include <deque>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/compose_spec.h"
#include "layers/dir/upper_source.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using engine::ExecEvent;

constexpr std::size_t kShownLines = 20;

/// Where the output of a step goes: to the log, line by line to whoever watches, and its end into the error.
class StepOutput {
 public:
  StepOutput(fs::path log, std::string step, Progress& progress)
      : path_(std::move(log)), step_(std::move(step)), progress_(progress) {
    make_directories(path_.parent_path(), 0700);
    log_ = open_file(path_, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }

  void take(std::string_view bytes) {
    write_all(log_.get(), bytes);
    line_ += bytes;
    for (std::size_t end; (end = line_.find('\n')) != std::string::npos; line_.erase(0, end + 1))
      show(line_.substr(0, end));
  }
  void finish() {
    if (!line_.empty()) show(std::exchange(line_, {}));
  }
  const std::deque<std::string>& last() const noexcept { return last_; }
  const fs::path& path() const noexcept { return path_; }

 private:
  void show(std::string line) {
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
  spec.made_for_command = true;
  spec.remove_at_end = true;
  // The recipe tells what it did.
  spec.record = false;
  // A fixed name: what a step records of its host must not differ from build to build.
  spec.hostname = "build";
  return spec;
}

ExecSpec command_of(const RunStep& step) {
  ExecSpec command{.argv = step.argv, .workdir = step.workdir, .user = step.user};
  for (const auto& [name, value] : step.env) command.env.push_back(name + "=" + value);
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

/// The tree of a writable layer without the deletions that delete nothing.
class StepTree final : public Source {
 public:
  StepTree(std::unique_ptr<Source> upper, StackLookup& below) : upper_(std::move(upper)), below_(below) {}
  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    return upper_->examine(options, progress);
  }
  void emit(std::size_t image, TreeSink& sink) override {
    NeededDeletions needed(sink, below_);
    upper_->emit(image, needed);
  }

 private:
  std::unique_ptr<Source> upper_;
  StackLookup& below_;
};

}  // namespace

engine::StoredLayer run_step(const RunRequest& request, StackLookup& below, const BuildOptions& options,
                             const BuildPorts& ports,
                             const std::function<engine::StoredLayer(Source&, SourceFacts)>& make_layer) {
  engine::LocalEngine& engine = ports.engine();
  const std::string step = request.recipe.ref() + " " + request.name;
  StepOutput output(ports.cache.parent_path() / "build-logs" / (request.key.hex().substr(0, 16) + ".log"), step,
                    ports.progress);
  const StepSandbox sandbox(engine, sandbox_of(request));
  const ExecSpec command = command_of(request.step);
  const ExecResult result = run(engine, sandbox.id(), command, output);
  if (result.shell_code() != 0) {
    if (options.on_failure) options.on_failure(engine, sandbox.id(), command);
    Error error = failure(how_it_ended(result));
    for (auto line = output.last().rbegin(); line != output.last().rend(); ++line) error.context("| " + *line);
    throw std::move(error).hint("read the whole output in " + output.path().native());
  }
  engine.stop(sandbox.id(), std::chrono::milliseconds(0));
  const UniqueFd upper = engine.open_writable_layer(sandbox.id());
  StepTree tree(
      open_upper_source(
          {.upper = "/proc/self/fd/" + std::to_string(upper.get()), .lower = {}, .scrub = request.scrub, .ids = {}}),
      below);
  SourceFacts facts = tree.examine({}, ports.progress);
  facts.provenance.source = "build";
  return make_layer(tree, std::move(facts));
}

}  // namespace dsec::layers
