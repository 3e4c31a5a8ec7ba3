// The files of the host that a dsec.yaml names, looked for before anything is built.

#include <algorithm>

#include "core/base/error.h"
#include "layers/build/project.h"
#include "layers/build/schema.h"
#include "layers/dockerfile/request.h"
#include "layers/git/git_source.h"
#include "layers/git/remote.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

class FileCheck {
 public:
  explicit FileCheck(const Project& project) : project_(project) {}
  std::vector<Problem> problems;

  void look_at(const LayerRecipe& recipe) {
    if (!recipe.from.empty()) told_at(recipe.from_at, [&] { look_at_source(recipe); });
    for (const Step& step : recipe.steps) {
      if (const auto* copy = std::get_if<CopyStep>(&step)) expect(project_.directory / copy->from, copy->at);
      if (const auto* git = std::get_if<GitStep>(&step); git && !is_remote(git->url))
        told_at(git->at, [&] { expect(project_.directory / local_path(git->url), git->at); });
    }
  }

 private:
  template <typename Look>
  void told_at(const Place& at, Look&& look) {
    try {
      look();
    } catch (const Error& error) {
      problems.push_back({at.line, at.column, error.message()});
    }
  }

  void look_at_source(const LayerRecipe& recipe) {
    const std::size_t colon = recipe.from.find(':');
    const std::string scheme = recipe.from.substr(0, colon), rest = recipe.from.substr(colon + 1);
    if (scheme == "git") {
      const GitRequest request = GitRequest::parse(rest, project_.directory);
      if (!is_remote(request.location)) expect(local_path(request.location), recipe.from_at);
    } else if (scheme == "dockerfile") {
      const auto request = dockerfile::Request::parse(recipe.from, project_.directory);
      expect(request.directory / request.file, recipe.from_at);
    } else if (is_file_scheme(scheme) && rest != "-" && !is_there(project_.directory / rest)) {
      // An image's reference and a folder's options may follow the path, and may as well be part of it.
      expect(project_.directory / rest.substr(0, rest.find_first_of(":?")), recipe.from_at);
    }
  }

  void expect(const fs::path& path, const Place& at) {
    if (!is_there(path))
      problems.push_back({at.line, at.column, "there is no " + quote(path.lexically_normal().native())});
  }

  const Project& project_;
};

}  // namespace

void check_files(const Project& project, const std::vector<const LayerRecipe*>& recipes) {
  FileCheck check(project);
  for (const LayerRecipe* recipe : recipes) check.look_at(*recipe);
  if (!check.problems.empty())
    throw problems_of(project.file, std::move(check.problems))
        .hint("man 5 dsec.yaml, or dsec env schema for your editor");
}

}  // namespace dsec::layers
