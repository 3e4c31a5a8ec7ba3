#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/engine/layer_store.h"
#include "layers/build/project.h"
#include "layers/build/recipe_inputs.h"
#include "layers/source.h"

namespace dsec::layers {

/// What the steps of a recipe add up to, one after the other: the settings that hold for those that follow, the key
/// that names what each makes, and what the layer records of them.
class StepChain {
 public:
  /// `below`: what the steps stand on, bottom to top. The recipe must outlive the chain.
  StepChain(const LayerRecipe& recipe, const std::vector<std::optional<RecipeInput>>& inputs,
            std::span<const engine::StoredLayer> below);

  /// Goes on by one step. The key is of everything that decides what it makes: parent, step, input, settings.
  const Digest& next();
  const ImageConfig& settings() const noexcept { return settings_; }
  /// Of the layer, once all steps are done.
  SourceFacts facts() const;

 private:
  Digest key_of(const Step& step, const std::string& input) const;

  const LayerRecipe& recipe_;
  std::vector<std::string> inputs_;  // what identifies each; empty where a step takes nothing in
  std::size_t done_ = 0;
  ImageConfig settings_;
  Digest key_;
  SourceFacts facts_;
};

/// Whether the layer has something of the step besides settings.
bool makes_files(const Step& step);

}  // namespace dsec::layers
