#include "layers/build/references.h"

#include "core/base/error.h"

namespace dsec::layers {
namespace {

std::vector<std::string> known_names(const Project& project, engine::LayerStore& store) {
  std::vector<std::string> names;
  for (const LayerRecipe& recipe : project.layers) names.push_back(recipe.ref());
  for (const engine::StoredLayer& layer : store.list()) names.insert(names.end(), layer.tags.begin(), layer.tags.end());
  return names;
}

}  // namespace

std::vector<Problem> dangling_references(const Project& project, engine::LayerStore& store,
                                         const WhichReferences& which) {
  std::vector<Problem> problems;
  for (const LayerReference& reference : project.references) {
    if ((which && !which(reference)) || project.layer(reference.ref)) continue;
    std::string text = quote(reference.ref.str()) + " is neither made by this file nor in the store";
    try {
      if (store.find(reference.ref)) continue;
      const std::vector<std::string> near = nearest_names(reference.ref.str(), known_names(project, store), 1);
      if (!near.empty()) text += "; did you mean " + near.front() + "?";
    } catch (const Error& error) {
      // A digest that several layers have.
      if (error.kind() != ErrorKind::Usage) throw;
      text = error.message();
    }
    problems.push_back({reference.at.line, reference.at.column, std::move(text)});
  }
  return problems;
}

void refuse_dangling_references(const Project& project, engine::LayerStore& store, const WhichReferences& which) {
  std::vector<Problem> problems = dangling_references(project, store, which);
  if (!problems.empty())
    throw problems_of(project.file, std::move(problems)).hint("dsec pull it, if it is made elsewhere");
}

}  // namespace dsec::layers
