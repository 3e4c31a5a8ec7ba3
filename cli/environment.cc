#include "cli/environment.h"

#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/model/environment_spec.h"
#include "core/model/lock.h"
#include "layers/build/project.h"

namespace dsec::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kDefaultFile = "dsec.yaml";

fs::path file_of(const std::string& file) { return file.empty() ? fs::path(kDefaultFile) : fs::path(file); }

std::optional<Lock> lock_beside(const fs::path& file) {
  const fs::path path = fs::path(file).replace_extension(".lock");
  if (!fs::exists(path)) return std::nullopt;
  return Lock::parse(read_file(path), path.native());
}

// What the lock was made with holds unless the command line says otherwise.
std::map<std::string, std::string> merged(std::map<std::string, std::string> args, const std::optional<Lock>& lock) {
  if (lock) args.insert(lock->args.begin(), lock->args.end());
  return args;
}

}  // namespace

bool has_environment(const std::string& name, const std::string& file, const std::map<std::string, std::string>& args) {
  const fs::path path = file_of(file);
  if (!fs::exists(path)) return false;
  return layers::Project::load(path, merged(args, lock_beside(path))).environment(name) != nullptr;
}

engine::SandboxRequest request_of_environment(const std::string& name, const std::string& file,
                                              const std::map<std::string, std::string>& args) {
  const fs::path path = file_of(file);
  if (!fs::exists(path))
    throw usage_error("there is no " + quote(path.native()) + " to take environment " + quote(name) + " from")
        .hint("give the file with --file")
        .hint("name layers instead: base/NAME workspace/NAME toolkit/NAME");
  const std::optional<Lock> lock = lock_beside(path);
  const layers::Project project = layers::Project::load(path, merged(args, lock));
  const EnvironmentSpec* environment = project.environment(name);
  if (!environment) {
    std::vector<std::string> known;
    for (const auto& other : project.environments) known.push_back(other.name);
    Error error = usage_error(quote(path.native()) + " has no environment " + quote(name));
    for (const auto& near : nearest_names(name, known)) error.hint(near);
    throw std::move(error).hint("dsec env ls");
  }
  std::vector<LayerRef> refs = environment->layers();
  const auto pinned = lock ? lock->environments.find(name) : decltype(lock->environments.find(name)){};
  if (lock && pinned != lock->environments.end()) {
    refs.clear();
    for (const Digest& digest : pinned->second) refs.push_back(LayerRef::of(digest));
  } else {
    // A reference without a tag means the layer that this file makes, whatever its tag.
    for (LayerRef& ref : refs)
      if (const auto* recipe = project.layer(ref)) ref = LayerRef::parse(recipe->ref());
  }
  return engine::request_of(*environment, std::move(refs));
}

}  // namespace dsec::cli
