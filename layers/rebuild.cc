#include "layers/rebuild.h"

#include <charconv>
#include <map>

#include "core/base/error.h"
#include "layers/build/merge_source.h"
#include "layers/build/stack_lookup.h"
#include "layers/build/step_chain.h"
#include "layers/erofs/mkfs.h"
#include "layers/import.h"

namespace dsec::layers {
namespace {

using Values = std::map<std::string, std::string>;

ImportOptions options_of(const LayerManifest& manifest) {
  ImportOptions options{.name = manifest.name, .tag = "", .platform = manifest.platform};
  const Values& recorded = manifest.provenance.options;
  if (const auto to = recorded.find("to"); to != recorded.end()) options.to = to->second;
  if (const auto limit = recorded.find("collapse_limit"); limit != recorded.end())
    std::from_chars(limit->second.data(), limit->second.data() + limit->second.size(), options.collapse_limit);
  if (!manifest.images.empty()) options.compression = manifest.images.front().compression;
  return options;
}

void compare(const std::string& what, const Values& then, const Values& now, std::vector<std::string>& differences) {
  Values names = then;
  names.insert(now.begin(), now.end());
  const auto value = [](const Values& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string("absent") : found->second;
  };
  for (const auto& [name, ignored] : names) {
    const std::string was = value(then, name), is = value(now, name);
    std::string told = what;
    told.append(" ").append(name).append(": was ").append(was).append(", is ").append(is);
    if (was != is) differences.push_back(std::move(told));
  }
}

Values blobs_of(const LayerManifest& manifest) {
  static const std::map<BlobRole, std::string> kRoles = {
      {BlobRole::Meta, "meta"}, {BlobRole::Data, "data"}, {BlobRole::Chunks, "chunks"}};
  Values blobs;
  for (std::size_t i = 0; i < manifest.images.size(); ++i)
    for (const Blob& blob : manifest.images[i].blobs)
      blobs["of image " + std::to_string(i) + " " + kRoles.at(blob.role)] = blob.digest.str();
  return blobs;
}

Values steps_of(const LayerManifest& manifest) {
  Values steps;
  for (const Digest& step : manifest.provenance.steps) steps[std::to_string(steps.size() + 1)] = step.str();
  return steps;
}

void check_mkfs(const Provenance& then) {
  if (const std::string here = Mkfs::find().version; here != then.mkfs)
    throw failure("it was written by mkfs.erofs " + then.mkfs + ", this host has " + here)
        .hint("DSEC_MKFS_EROFS=FILE with a mkfs.erofs of that version");
}

Rebuilt compare(const LayerManifest& then, const LayerManifest& now) {
  Rebuilt result{now.digest(), {}};
  compare("input", then.provenance.inputs, now.provenance.inputs, result.differences);
  compare("step", steps_of(then), steps_of(now), result.differences);
  compare("option", then.provenance.options, now.provenance.options, result.differences);
  compare("blob", blobs_of(then), blobs_of(now), result.differences);
  if (result.differences.empty() && result.digest != then.digest())
    result.differences.push_back("manifest: was " + then.digest().str() + ", is " + result.digest.str());
  return result;
}

void refuse_commands(const LayerRecipe& recipe) {
  for (std::size_t i = 0; i < recipe.steps.size(); ++i)
    if (std::holds_alternative<RunStep>(recipe.steps[i]))
      throw failure(step_name(recipe, i) + " runs a command, which need not do the same twice")
          .hint("dsec build --no-cache, which runs the steps again");
}

engine::StoredLayer unstored(LayerManifest manifest) {
  const Digest digest = manifest.digest();
  return {.digest = digest, .manifest = std::move(manifest), .tags = {}, .labels = {}, .added = {}};
}

}  // namespace

Rebuilt rebuild(engine::LayerStore& store, const LayerManifest& manifest, Source& source, Progress& progress) {
  return attempt("cannot make " + manifest.name.str() + " again", [&] {
    const Provenance& then = manifest.provenance;
    if (!then.steps.empty())
      throw failure("it was made by build steps").hint("dsec build --no-cache, which runs the steps again");
    check_mkfs(then);
    const auto session = store.begin_session();
    const LayerManifest now = make_layer(*session, source, options_of(manifest), progress);
    if (now.provenance.source != then.source)
      throw usage_error("it was made from a source of the kind " + quote(then.source) + ", not " +
                        quote(now.provenance.source));
    return compare(manifest, now);
  });
}

Rebuilt rebuild_steps(engine::LayerStore& store, const LayerManifest& manifest, const Project& project,
                      const LayerRecipe& recipe, const InputOptions& options, Progress& progress) {
  return attempt("cannot make " + manifest.name.str() + " again", [&] {
    refuse_commands(recipe);
    check_mkfs(manifest.provenance);
    const auto session = store.begin_session();
    const auto inputs = open_inputs(project, recipe, options, progress);
    std::vector<engine::StoredLayer> below, made;
    if (const std::optional<Digest>& built_on = manifest.provenance.built_on)
      below = stack_up_to(LayerRef::of(*built_on), [&](const LayerRef& ref) { return store.get(ref); });
    StackLookup lookup(below, store);
    StepChain chain(recipe, inputs, below);
    for (const std::optional<RecipeInput>& input : inputs) {
      chain.next();
      if (!input) continue;
      Examined source(*input->source, input->facts);
      made.push_back(unstored(make_layer(
          *session, source, {.name = recipe.name, .tag = "", .to = input->to, .platform = recipe.platform}, progress)));
    }
    const std::unique_ptr<Source> merged = make_merge_source(made, store, lookup, chain.facts());
    return compare(manifest, make_layer(*session, *merged, options_of(manifest), progress));
  });
}

}  // namespace dsec::layers
