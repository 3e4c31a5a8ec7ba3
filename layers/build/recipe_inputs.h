#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/progress.h"
#include "core/engine/remote_image.h"
#include "layers/build/project.h"
#include "layers/build/schema.h"
#include "layers/dockerfile/copy_origin.h"
#include "layers/source.h"

namespace dsec::layers {

/// What a recipe takes in: the source of `from`, or of one step, examined.
struct RecipeInput {
  std::unique_ptr<Source> source;  ///< null: a Dockerfile, of which `facts` has the inputs alone
  std::string to;                  ///< where it goes in the layer
  SourceFacts facts;
  std::shared_ptr<dockerfile::ContextOrigin> context = {};  ///< of a Dockerfile
};

/// A source whose examination is over, so that whoever makes the layer does not repeat it.
class Examined final : public Source {
 public:
  Examined(Source& under, SourceFacts facts) : under_(under), facts_(std::move(facts)) {}
  SourceFacts examine(const SourceOptions&, Progress&) override { return facts_; }
  void emit(std::size_t image, TreeSink& sink) override { under_.emit(image, sink); }

 private:
  Source& under_;
  SourceFacts facts_;
};

struct InputOptions {
  bool offline = false;         ///< refuse what needs a network
  std::filesystem::path spool;  ///< see OpenSourceOptions
  engine::OpenRemoteImage images = {};
  std::filesystem::path cache = {};  ///< where digests of files are kept between builds; empty: nowhere
};

/// One for `from`, else one for each step, empty for steps that take nothing in. Throws Error naming the step whose
/// files or commit are not there.
std::vector<std::optional<RecipeInput>> open_inputs(const Project& project, const LayerRecipe& recipe,
                                                    const InputOptions& options, Progress& progress);

/// What identifies the inputs, as the layer's provenance and dsec.lock record it: {"tree": …}, {"step2.commit": …}.
std::map<std::string, std::string> input_digests(const LayerRecipe& recipe,
                                                 const std::vector<std::optional<RecipeInput>>& inputs);

/// Without the images that a Dockerfile was FROM: those are what the lock pins, and nothing here has them.
std::map<std::string, std::string> own_inputs(std::map<std::string, std::string> inputs);

/// What of a recipe needs a network, with its place in dsec.yaml.
std::vector<Problem> network_needs(const LayerRecipe& recipe);

/// Whether looking at the inputs takes a network.
bool has_remote_input(const LayerRecipe& recipe);

/// "step 2/3 (run: make)".
std::string step_name(const LayerRecipe& recipe, std::size_t index);

}  // namespace dsec::layers
