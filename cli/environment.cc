#include "cli/environment.h"

#include <filesystem>
#include <optional>

#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/model/environment_spec.h"
#include "core/model/lock.h"
#include "layers/build/environments.h"
#include "layers/build/project.h"
#include "layers/build/references.h"

namespace dsec::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kDefaultFile = "dsec.yaml";

fs::path file_of(const std::string& file) { return file.empty() ? fs::path(kDefaultFile) : fs::path(file); }

// What the lock was made with holds unless the command line says otherwise.
std::map<std::string, std::string> merged(std::map<std::string, std::string> args, const std::optional<Lock>& lock) {
  if (lock) args.insert(lock->args.begin(), lock->args.end());
  return args;
}

}  // namespace

bool has_environment(const std::string& name, const std::string& file, const std::map<std::string, std::string>& args) {
  const fs::path path = file_of(file);
  if (!fs::exists(path)) return false;
  return layers::Project::load(path, merged(args, layers::read_lock(path))).environment(name) != nullptr;
}

engine::SandboxRequest request_of_environment(const std::string& name, const std::string& file,
                                              const std::map<std::string, std::string>& args) {
  const fs::path path = file_of(file);
  if (!fs::exists(path))
    throw usage_error("there is no " + quote(path.native()) + " to take environment " + quote(name) + " from")
        .hint("give the file with --file")
        .hint("name layers instead: base/NAME workspace/NAME toolkit/NAME");
  const std::optional<Lock> lock = layers::read_lock(path);
  const layers::Project project = layers::Project::load(path, merged(args, lock));
  const EnvironmentSpec& environment = layers::environment_of(project, name);
  return engine::request_of(environment, layers::layers_of(project, lock, environment));
}

void refuse_dangling_references(Invocation& call, const std::string& name, const std::string& file,
                                const std::map<std::string, std::string>& args) {
  const fs::path path = file_of(file);
  const layers::Project project = layers::Project::load(path, merged(args, layers::read_lock(path)));
  layers::refuse_dangling_references(project, call.wiring().layer_store(),
                                     [&](const layers::LayerReference& other) { return other.by == name; });
}

}  // namespace dsec::cli
