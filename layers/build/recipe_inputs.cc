#include "layers/build/recipe_inputs.h"

#include "core/base/error.h"
#include "layers/build/base_images.h"
#include "layers/build/copy_source.h"
#include "layers/build/dockerfile_build.h"
#include "layers/dockerfile/request.h"
#include "layers/git/remote.h"
#include "layers/open_source.h"

namespace dsec::layers {
namespace {

bool remote_source(std::string_view from) {
  return (from.starts_with("git:") && is_remote(from.substr(4))) || from.starts_with("docker:") ||
         from.starts_with("debootstrap:");
}

std::string git_source(const GitStep& step) { return "git:" + step.url + "@" + step.rev + "?history=" + step.history; }

std::string source_of(const LayerRecipe& recipe) {
  return recipe.from + (recipe.history.empty() ? "" : "?history=" + recipe.history);
}

std::string place_of(const LayerRecipe& recipe) {
  if (!recipe.to.empty()) return recipe.to;
  return recipe.from.starts_with("git:") ? "/workspace" : "/";
}

class Opening {
 public:
  Opening(const Project& project, const LayerRecipe& recipe, const InputOptions& options, Progress& progress)
      : project_(project), recipe_(recipe), options_(options), progress_(progress) {}

  RecipeInput from() const {
    if (!dockerfile::Request::is_one(recipe_.from)) return from_source();
    RecipeInput input;
    input.context = dockerfile_context(recipe_, project_.directory, options_.cache);
    input.facts.provenance.inputs = dockerfile_inputs(recipe_, project_.directory, *input.context);
    return input;
  }

  RecipeInput from_source() const { return examined({open(source_of(recipe_)), place_of(recipe_), {}, {}}); }

  std::optional<RecipeInput> of(const Step& step) const {
    if (const auto* copy = std::get_if<CopyStep>(&step)) {
      CopyPlan plan = plan_copy(project_.directory, *copy);
      return examined({std::move(plan.source), std::move(plan.to), {}, {}});
    }
    if (const auto* git = std::get_if<GitStep>(&step)) return examined({open(git_source(*git)), git->to, {}, {}});
    if (const auto* run = std::get_if<RunStep>(&step))
      refuse_network(run->network.mode != NetworkMode::None, "the step");
    return std::nullopt;
  }

 private:
  void refuse_network(bool needed, const std::string& what) const {
    if (options_.offline && needed) throw usage_error(what + " needs a network").hint("dsec build without --offline");
  }

  std::unique_ptr<Source> open(const std::string& text) const {
    refuse_network(remote_source(text), "source " + quote(text));
    return open_source(text, {.directory = project_.directory, .spool = options_.spool, .images = options_.images});
  }

  RecipeInput examined(RecipeInput input) const {
    input.facts = input.source->examine({.platform = recipe_.platform}, progress_);
    return input;
  }

  const Project& project_;
  const LayerRecipe& recipe_;
  const InputOptions& options_;
  Progress& progress_;
};

}  // namespace

std::string step_name(const LayerRecipe& recipe, std::size_t index) {
  return "step " + std::to_string(index + 1) + "/" + std::to_string(recipe.steps.size()) + " (" +
         brief(recipe.steps[index]) + ")";
}

std::vector<std::optional<RecipeInput>> open_inputs(const Project& project, const LayerRecipe& recipe,
                                                    const InputOptions& options, Progress& progress) {
  const Opening opening(project, recipe, options, progress);
  std::vector<std::optional<RecipeInput>> inputs;
  if (!recipe.from.empty()) inputs.push_back(opening.from());
  for (std::size_t i = 0; i < recipe.steps.size(); ++i)
    attempt(step_name(recipe, i), [&] { inputs.push_back(opening.of(recipe.steps[i])); });
  return inputs;
}

std::map<std::string, std::string> input_digests(const LayerRecipe& recipe,
                                                 const std::vector<std::optional<RecipeInput>>& inputs) {
  if (!recipe.from.empty()) return inputs.front()->facts.provenance.inputs;
  std::map<std::string, std::string> digests;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i])
      for (const auto& [name, value] : inputs[i]->facts.provenance.inputs)
        digests["step" + std::to_string(i + 1) + "." + name] = value;
  return digests;
}

std::map<std::string, std::string> own_inputs(std::map<std::string, std::string> inputs) {
  std::erase_if(inputs, [](const auto& input) { return BaseImages::is_image_input(input.first); });
  return inputs;
}

std::vector<Problem> network_needs(const LayerRecipe& recipe) {
  std::vector<Problem> needs;
  if (!recipe.from.empty()) {
    if (remote_source(source_of(recipe)))
      needs.push_back(
          {recipe.from_at.line, recipe.from_at.column, "source " + quote(recipe.from) + " needs a network"});
    return needs;
  }
  for (std::size_t i = 0; i < recipe.steps.size(); ++i) {
    const auto* git = std::get_if<GitStep>(&recipe.steps[i]);
    const auto* run = std::get_if<RunStep>(&recipe.steps[i]);
    if ((git && remote_source(git_source(*git))) || (run && run->network.mode != NetworkMode::None))
      needs.push_back({recipe.line, 1, step_name(recipe, i) + " of " + recipe.ref() + " needs a network"});
  }
  return needs;
}

bool has_remote_input(const LayerRecipe& recipe) {
  if (!recipe.from.empty()) return remote_source(source_of(recipe));
  for (const Step& step : recipe.steps)
    if (const auto* git = std::get_if<GitStep>(&step); git && remote_source(git_source(*git))) return true;
  return false;
}

}  // namespace dsec::layers
