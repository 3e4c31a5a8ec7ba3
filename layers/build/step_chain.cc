#include "layers/build/step_chain.h"

#include <nlohmann/json.hpp>

#include "core/base/json.h"
#include "core/engine/compose_spec.h"
#include "layers/dir/scrub.h"

namespace dsec::layers {
namespace {

void apply_settings(const Step& step, ImageConfig& settings) {
  if (const auto* env = std::get_if<EnvStep>(&step))
    for (const auto& [name, value] : env->values) engine::set_variable(settings.env, name + "=" + value);
  if (const auto* workdir = std::get_if<WorkdirStep>(&step)) settings.workdir = workdir->path;
  if (const auto* user = std::get_if<UserStep>(&step)) settings.user = user->user;
}

}  // namespace

StepChain::StepChain(const LayerRecipe& recipe, const std::vector<std::optional<RecipeInput>>& inputs,
                     std::span<const engine::StoredLayer> below)
    : recipe_(recipe), key_(below.empty() ? Digest::of("") : below.back().digest) {
  for (const std::optional<RecipeInput>& input : inputs)
    inputs_.push_back(input ? input->facts.identity.str() : std::string());
  facts_.provenance.source = "build";
  facts_.provenance.inputs = input_digests(recipe, inputs);
  if (below.empty()) return;
  facts_.provenance.built_on = below.back().digest;
  facts_.platform = below.front().manifest.platform;
}

const Digest& StepChain::next() {
  const Step& step = recipe_.steps.at(done_);
  apply_settings(step, settings_);
  key_ = key_of(step, inputs_.at(done_));
  facts_.provenance.steps.push_back(Digest::of(canonical_json(to_json(step))));
  ++done_;
  return key_;
}

Digest StepChain::key_of(const Step& step, const std::string& input) const {
  Json json = {{"parent", key_.str()}, {"step", to_json(step)}, {"input", input}};
  if (std::holds_alternative<RunStep>(step)) {
    json["settings"] = to_json(settings_);
    json["scrub"] = Scrub::standard(recipe_.scrub, recipe_.keep).text();
  }
  return Digest::of(canonical_json(json));
}

SourceFacts StepChain::facts() const {
  SourceFacts facts = facts_;
  facts.config = settings_;
  facts.identity = key_;
  return facts;
}

bool makes_files(const Step& step) {
  return std::holds_alternative<RunStep>(step) || std::holds_alternative<CopyStep>(step) ||
         std::holds_alternative<GitStep>(step);
}

}  // namespace dsec::layers
