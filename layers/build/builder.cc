#include "layers/build/builder.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/build/base_images.h"
#include "layers/build/dockerfile_build.h"
#include "layers/build/environments.h"
#include "layers/build/merge_source.h"
#include "layers/build/recipe_inputs.h"
#include "layers/build/references.h"
#include "layers/build/run_step.h"
#include "layers/build/schedule.h"
#include "layers/build/stack_lookup.h"
#include "layers/build/step_cache.h"
#include "layers/build/step_chain.h"
#include "layers/build/step_conflicts.h"
#include "layers/dir/scrub.h"
#include "layers/dockerfile/request.h"
#include "layers/import.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using engine::StoredLayer;
using std::chrono::steady_clock;

/// Passes on warnings alone: a step reports itself, and what makes its image is part of that.
class Quietly final : public Progress {
 public:
  explicit Quietly(Progress& under) : under_(under) {}
  void warn(std::string_view message) override { under_.warn(message); }

 private:
  Progress& under_;
};

/// A step's image is told apart from a layer that a person would use.
constexpr const char* kStepLabel = "dsec.step";

/// Makes the layer of one recipe.
class LayerBuild {
 public:
  LayerBuild(const Project& project, const LayerRecipe& recipe, const BuildOptions& options, const BuildPorts& ports,
             const std::optional<Lock>& lock)
      : project_(project),
        recipe_(recipe),
        options_(options),
        ports_(ports),
        lock_(lock),
        cache_(ports.cache, ports.store) {}

  BuildOutcome run() {
    const auto started = steady_clock::now();
    BuildOutcome outcome = attempt("cannot build " + recipe_.ref(), [&] {
      const LockedLayer* locked = locked_entry();
      std::optional<StoredLayer> stored = locked ? ports_.store.find(LayerRef::of(locked->digest)) : std::nullopt;
      // A remote source is named by its commit or suite in the lock; it is not fetched again to be told so.
      if (stored && has_remote_input(recipe_)) return finish(*std::move(stored), BuildOutcome::Kind::Cached);
      Inputs inputs = open_inputs(
          project_, recipe_,
          {.offline = options_.offline, .spool = ports_.cache, .images = ports_.images, .cache = ports_.cache},
          ports_.progress);
      if (locked && input_digests(recipe_, inputs) != own_inputs(locked->inputs))
        throw usage_error("its files are not those that were locked").hint("dsec build without --locked");
      if (stored) return finish(*std::move(stored), BuildOutcome::Kind::Cached);
      BuildOutcome made = recipe_.from.empty()      ? from_steps(inputs)
                          : !inputs.front()->source ? from_dockerfile(*inputs.front())
                                                    : from_source(*inputs.front());
      if (locked && made.layer.digest != locked->digest)
        throw failure("it would be " + made.layer.digest.brief() + ", dsec.lock has " + locked->digest.brief())
            .hint("dsec pull the locked layer, or dsec build without --locked to lock what is built now");
      return made;
    });
    outcome.duration = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - started);
    return outcome;
  }

 private:
  using Inputs = std::vector<std::optional<RecipeInput>>;

  const LockedLayer* locked_entry() const {
    if (!options_.locked) return nullptr;
    const auto found = lock_->layers.find(recipe_.ref());
    if (found == lock_->layers.end())
      throw usage_error("dsec.lock does not have it").hint("dsec build without --locked");
    if (found->second.recipe != recipe_.digest().str())
      throw usage_error("its entry in dsec.yaml is not the one that was locked").hint("dsec build without --locked");
    return &found->second;
  }

  /// Tags the layer, unless --locked finds another than the lock has.
  BuildOutcome finish(StoredLayer layer, BuildOutcome::Kind kind) {
    const LockedLayer* locked = locked_entry();
    if (!locked || locked->digest == layer.digest) {
      std::map<std::string, std::string> labels = recipe_.labels;
      labels[kRecipeLabel] = recipe_.digest().str();
      if (is_marked(layer, labels)) return {recipe_.ref(), std::move(layer), kind, recipe_.steps.size(), 0, {}};
      const std::unique_ptr<engine::BlobSession> session = ports_.store.begin_session();
      for (const LayerImage& image : layer.manifest.images)
        for (const Blob& blob : image.blobs) session->hold(blob.digest);
      // It may hold images of a base that was not checked yet.
      const engine::Trust trust = layer.trusted ? engine::Trust::BuiltHere : engine::Trust::Foreign;
      layer = ports_.store.add(layer.manifest, recipe_.tag, trust, *session, labels);
    }
    return {recipe_.ref(), std::move(layer), kind, recipe_.steps.size(), 0, {}};
  }

  // A build that does nothing should not wait for a disk either.
  bool is_marked(const StoredLayer& layer, const std::map<std::string, std::string>& labels) const {
    const bool tagged = std::find(layer.tags.begin(), layer.tags.end(), recipe_.ref()) != layer.tags.end();
    return tagged && layer.labels == labels;
  }

  StoredLayer import(Source& source, SourceFacts facts, const std::string& to, bool step) const {
    Examined examined(source, std::move(facts));
    ImportOptions options{.name = recipe_.name, .tag = "", .to = to, .platform = recipe_.platform};
    if (step) options.labels[kStepLabel] = recipe_.ref();
    Quietly quietly(ports_.progress);
    if (!step && !recipe_.compress.empty()) options.compression = recipe_.compress;
    return import_layer(ports_.store, examined, options, recipe_.from.empty() || step ? quietly : ports_.progress);
  }

  BuildOutcome from_source(RecipeInput& input) {
    const Digest key = Digest::of("source\n" + recipe_.digest().str() + "\n" + input.facts.identity.str());
    if (!options_.no_cache)
      if (std::optional<StoredLayer> cached = cache_.find(key))
        return finish(*std::move(cached), BuildOutcome::Kind::Cached);
    const StoredLayer made = import(*input.source, std::move(input.facts), input.to, false);
    cache_.put(key, made);
    return finish(made, BuildOutcome::Kind::Built);
  }

  BuildOutcome from_dockerfile(const RecipeInput& input) {
    const DockerfileJob job{
        .recipe = recipe_,
        .directory = project_.directory,
        .inputs = input.facts.provenance.inputs,
        .context = *input.context,
        .locked_images = locked_images(),
        .layer = [this](const LayerRef& ref) { return named_layer(ref); },
        .make_step = [this](Source& source, SourceFacts made) { return import(source, std::move(made), "/", true); }};
    const DockerfileOutcome made = build_dockerfile(job, options_, ports_);
    BuildOutcome outcome = finish(made.layer, made.cached ? BuildOutcome::Kind::Cached : BuildOutcome::Kind::Built);
    outcome.steps = made.steps;
    outcome.cached_steps = made.cached_steps;
    return outcome;
  }

  std::map<std::string, std::string> locked_images() const {
    std::map<std::string, std::string> images;
    if (const LockedLayer* locked = locked_entry())
      for (const auto& input : locked->inputs)
        if (BaseImages::is_image_input(input.first)) images.insert(input);
    return images;
  }

  std::optional<StoredLayer> named_layer(const LayerRef& named) const {
    const LayerRef ref = actual_ref(project_, named);
    std::optional<StoredLayer> layer = ports_.store.find(ref);
    if (layer || !ports_.pull || options_.offline) return layer;
    ports_.pull(ref);
    return ports_.store.find(ref);
  }

  // ---- layers made by steps ----

  /// The layers that `on` stands on, and itself, bottom to top.
  std::vector<StoredLayer> stack_below() const {
    if (!recipe_.on) return {};
    return stack_up_to(actual_ref(project_, *recipe_.on), [this](const LayerRef& ref) {
      provide(ref);
      return ports_.store.get(ref);
    });
  }

  /// What the file does not make itself comes from the store, or else from a registry. All that is missing is told, not
  /// what this layer needs alone.
  void provide(const LayerRef& ref) const {
    if (ports_.store.find(ref)) return;
    if (ports_.pull && !options_.offline) ports_.pull(ref);
    if (!ports_.store.find(ref))
      refuse_dangling_references(project_, ports_.store,
                                 [&](const LayerReference& other) { return !project_.environment(other.by); });
  }

  BuildOutcome from_steps(Inputs& inputs) {
    // What the layer is made from, apart from what it stands on: a new base alone builds nothing again.
    std::string own = "steps\n" + recipe_.digest().str();
    for (const std::optional<RecipeInput>& input : inputs) own += "\n" + (input ? input->facts.identity.str() : "");
    const Digest own_key = Digest::of(own);
    if (!options_.no_cache)
      if (std::optional<StoredLayer> cached = cache_.find(own_key))
        return finish(*std::move(cached), BuildOutcome::Kind::Cached);

    const std::vector<StoredLayer> below = stack_below();
    std::vector<StoredLayer> made;
    BuildOutcome outcome{recipe_.ref(),
                         StoredLayer{own_key, LayerManifest{recipe_.name, {}, {}, {}, {}, {}, {}}, {}, {}, {}}};
    StackLookup lookup(below, ports_.store);
    StepChain chain(recipe_, inputs, below);
    for (std::size_t i = 0; i < recipe_.steps.size(); ++i) {
      const std::string name = step_name(recipe_, i);
      const Digest& key = chain.next();
      if (!makes_files(recipe_.steps[i])) continue;
      const std::string label = recipe_.ref() + " " + name;
      ports_.progress.begin(label);
      std::optional<StoredLayer> layer = options_.no_cache ? std::nullopt : cache_.find(key);
      if (layer) {
        ++outcome.cached_steps;
        ports_.progress.end(label, "cached");
      } else {
        const auto started = steady_clock::now();
        layer = attempt(name, [&] { return make_step(i, inputs[i], below, made, chain.settings(), key); });
        cache_.put(key, *layer);
        const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - started);
        ports_.progress.end(label, format_size(layer->manifest.total_size()) + " in " + format_duration(took));
      }
      made.push_back(*std::move(layer));
    }
    const std::unique_ptr<Source> merged = make_merge_source(made, ports_.store, lookup, chain.facts());
    const StoredLayer layer = import(*merged, merged->examine({}, ports_.progress), "/", false);
    cache_.put(own_key, layer);
    const std::size_t cached = outcome.cached_steps;
    outcome = finish(layer, BuildOutcome::Kind::Built);
    outcome.cached_steps = cached;
    return outcome;
  }

  StoredLayer make_step(std::size_t i, std::optional<RecipeInput>& input, const std::vector<StoredLayer>& below,
                        const std::vector<StoredLayer>& made, const ImageConfig& settings, const Digest& key) const {
    std::vector<StoredLayer> stack = below;
    stack.insert(stack.end(), made.begin(), made.end());
    // Steps that came before are below this one too: what it deletes of theirs must stay deleted until all are merged.
    StackLookup with_steps(stack, ports_.store);
    if (input) {
      StoredLayer layer = import(*input->source, input->facts, input->to, true);
      refuse_conflicts(layer, with_steps, ports_.store);
      return layer;
    }
    const Scrub scrub = Scrub::standard(recipe_.scrub, recipe_.keep);
    RunRequest request{.recipe = recipe_,
                       .name = "step " + std::to_string(i + 1),
                       .step = std::get<RunStep>(recipe_.steps[i]),
                       .stack = stack,
                       .settings = settings,
                       .scrub = scrub,
                       .key = key};
    return run_step(request, with_steps, options_, ports_,
                    [&](Source& source, SourceFacts facts) { return import(source, std::move(facts), "/", true); });
  }

  const Project& project_;
  const LayerRecipe& recipe_;
  const BuildOptions& options_;
  const BuildPorts& ports_;
  const std::optional<Lock>& lock_;
  StepCache cache_;
};

bool has_dockerfile(const LayerRecipe& recipe, const fs::path& directory) {
  const auto request = dockerfile::Request::parse(recipe.from, directory);
  std::error_code ignored;
  return fs::exists(request.directory / request.file, ignored);
}

/// The recipes of the file that one stands on: `on`, or what its Dockerfile is made from.
std::vector<std::size_t> recipes_below(const Project& project, const LayerRecipe& recipe) {
  std::vector<LayerRef> refs;
  if (recipe.on) refs.push_back(*recipe.on);
  // A Dockerfile that is not there is told with all else that is not.
  if (dockerfile::Request::is_one(recipe.from) && has_dockerfile(recipe, project.directory))
    refs = attempt("cannot build " + recipe.ref(), [&] { return dockerfile_layers(recipe, project.directory); });
  std::vector<std::size_t> below;
  for (const LayerRef& ref : refs)
    if (const LayerRecipe* made_here = project.layer(ref))
      below.push_back(static_cast<std::size_t>(made_here - project.layers.data()));
  return below;
}

/// The recipes that the targets need, each with those that it stands on, in the order of the file.
using Wanted = std::map<std::size_t, std::vector<std::size_t>>;

/// Goes from a recipe to all that it stands on. Throws Error (Usage) when that is the recipe itself.
void want(const Project& project, std::size_t recipe, std::set<std::size_t>& above, Wanted& wanted) {
  if (!above.insert(recipe).second) throw usage_error(quote(project.layers[recipe].name.str()) + " stands on itself");
  if (!wanted.contains(recipe)) {
    const std::vector<std::size_t> below = recipes_below(project, project.layers[recipe]);
    for (const std::size_t other : below) want(project, other, above, wanted);
    wanted.emplace(recipe, below);
  }
  above.erase(recipe);
}

Wanted wanted_recipes(const Project& project, const std::vector<std::string>& targets) {
  Wanted wanted;
  const auto want_ref = [&](const LayerRef& ref) {
    std::set<std::size_t> above;
    if (const LayerRecipe* recipe = project.layer(ref))
      want(project, static_cast<std::size_t>(recipe - project.layers.data()), above, wanted);
  };
  if (targets.empty())
    for (const LayerRecipe& recipe : project.layers) want_ref(LayerRef::parse(recipe.ref()));
  for (const std::string& target : targets) {
    if (const EnvironmentSpec* spec = project.environment(target)) {
      for (const LayerRef& ref : spec->layers()) want_ref(ref);
      continue;
    }
    const bool is_ref = target.find('/') != std::string::npos;
    if (is_ref && project.layer(LayerRef::parse(target))) {
      want_ref(LayerRef::parse(target));
      continue;
    }
    std::vector<std::string> names;
    for (const LayerRecipe& recipe : project.layers) names.push_back(recipe.name.str());
    for (const EnvironmentSpec& spec : project.environments) names.push_back(spec.name);
    Error error = usage_error(quote(project.file.native()) + " has no layer or environment " + quote(target));
    for (const std::string& near : nearest_names(target, names)) error.hint("did you mean " + near);
    throw error;
  }
  return wanted;
}

/// Null when the lock does not have it.
const LockedLayer* locked_layer(const Lock& lock, const LayerRecipe& recipe) {
  const auto found = lock.layers.find(recipe.ref());
  return found == lock.layers.end() ? nullptr : &found->second;
}

/// Throws Error (Usage) that lists all that the recipes need and that is not here, with its places in the file.
void refuse_what_is_away(const Project& project, const std::vector<const LayerRecipe*>& recipes, bool locked,
                         const std::optional<Lock>& lock, engine::LayerStore& store) {
  std::set<std::string> names;
  for (const LayerRecipe* recipe : recipes) names.insert(recipe->ref());
  std::vector<Problem> problems = dangling_references(
      project, store, [&](const LayerReference& reference) { return names.contains(reference.by); });
  for (const LayerRecipe* recipe : recipes) {
    // What is locked and here is not made again.
    if (const LockedLayer* pinned = locked ? locked_layer(*lock, *recipe) : nullptr;
        pinned && store.find(LayerRef::of(pinned->digest)))
      continue;
    for (Problem& need : network_needs(*recipe)) problems.push_back(std::move(need));
  }
  if (!problems.empty())
    throw problems_of(project.file, std::move(problems)).hint("dsec build without --offline, where there is a network");
}

/// Layers that build at the same time may all need the engine, which is made when it is first asked for, and
/// registries.
class SharedPorts {
 public:
  explicit SharedPorts(const BuildPorts& ports)
      : ports_{ports.store,
               [this, &ports]() -> engine::LocalEngine& {
                 const std::lock_guard guard(engine_mutex_);
                 return ports.engine();
               },
               ports.cache,
               ports.progress,
               [this, &ports](const LayerRef& ref) {
                 const std::lock_guard guard(pull_mutex_);
                 if (ports.pull) ports.pull(ref);
               },
               ports.images} {}
  SharedPorts(const SharedPorts&) = delete;
  const BuildPorts& get() const noexcept { return ports_; }

 private:
  std::mutex engine_mutex_, pull_mutex_;
  BuildPorts ports_;
};

}  // namespace

std::vector<BuildOutcome> build(const Project& project, const BuildOptions& options, const BuildPorts& ports) {
  const Wanted wanted = wanted_recipes(project, options.targets);
  std::vector<const LayerRecipe*> recipes;
  std::map<std::size_t, std::size_t> number;
  for (const auto& [recipe, below] : wanted) {
    number[recipe] = recipes.size();
    recipes.push_back(&project.layers[recipe]);
  }
  check_files(project, recipes);
  const std::optional<Lock> lock = read_lock(project);
  if (options.locked && !lock)
    throw usage_error("there is no " + quote(lock_path(project).native()) + " to hold the build to")
        .hint("dsec build without --locked");
  if (options.offline) refuse_what_is_away(project, recipes, options.locked, lock, ports.store);
  std::vector<std::vector<std::size_t>> after(recipes.size());
  for (const auto& [recipe, below] : wanted)
    for (const std::size_t other : below) after[number[recipe]].push_back(number[other]);
  const SharedPorts shared(ports);
  std::vector<std::optional<BuildOutcome>> outcomes(recipes.size());
  run_in_order(recipes.size(), after, options.jobs, [&](std::size_t i) {
    outcomes[i] = LayerBuild(project, *recipes[i], options, shared.get(), lock).run();
  });
  if (!options.locked) write_lock(project, make_lock(project, ports.store, WhenMissing::KeepOld, lock), ports.store);
  std::vector<BuildOutcome> result;
  for (std::optional<BuildOutcome>& outcome : outcomes) result.push_back(*std::move(outcome));
  return result;
}

BuildOutcome build_one(const LayerRecipe& recipe, const fs::path& directory, const BuildOptions& options,
                       const BuildPorts& ports) {
  const Project alone{{}, directory, {}, {recipe}, {}, {}, {}};
  const SharedPorts shared(ports);
  return LayerBuild(alone, alone.layers[0], options, shared.get(), std::nullopt).run();
}

}  // namespace dsec::layers
