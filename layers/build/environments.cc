#include "layers/build/environments.h"

#include <sys/utsname.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/version.h"
#include "layers/build/recipe_inputs.h"
#include "layers/build/references.h"
#include "layers/compose/conflicts.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using engine::LayerStore;
using engine::StoredLayer;

constexpr std::uint64_t kLargestLock = 64u << 20;

std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "";
}

// Layers that are made here and not built are told by name, all others by their places in the file.
[[noreturn]] void throw_missing(const Project& project, LayerStore& store, std::vector<std::string> missing,
                                const WhichReferences& which = {}) {
  for (const Problem& problem : dangling_references(project, store, which))
    missing.push_back(to_string(project.file, problem));
  Error error = usage_error(missing.back());
  for (auto text = missing.rbegin() + 1; text != missing.rend(); ++text) error.context(*text);
  throw std::move(error).hint("dsec build, or dsec pull for layers that are made elsewhere");
}

}  // namespace

LayerRef actual_ref(const Project& project, const LayerRef& ref) {
  const LayerRecipe* recipe = project.layer(ref);
  return recipe ? LayerRef::parse(recipe->ref()) : ref;
}

const EnvironmentSpec& environment_of(const Project& project, std::string_view name) {
  if (const EnvironmentSpec* spec = project.environment(name)) return *spec;
  std::vector<std::string> names;
  for (const EnvironmentSpec& spec : project.environments) names.push_back(spec.name);
  Error error = usage_error(quote(project.file.native()) + " has no environment " + quote(name));
  for (const std::string& near : nearest_names(name, names)) error.hint("did you mean " + near);
  throw std::move(error).hint("dsec env ls lists them");
}

fs::path lock_path(const Project& project) {
  return project.directory / project.file.filename().replace_extension(".lock");
}

std::optional<Lock> read_lock(const Project& project) { return read_lock(project.directory / project.file.filename()); }

std::optional<Lock> read_lock(const fs::path& project_file) {
  const fs::path path = fs::path(project_file).replace_extension(".lock");
  if (!fs::exists(path)) return std::nullopt;
  return Lock::parse(read_file(path, kLargestLock), path.native());
}

namespace {

/// Collects what a project's names mean in a store, and which mean nothing.
class Pinning {
 public:
  Pinning(const Project& project, LayerStore& store) : project_(project), store_(store) {}

  std::optional<StoredLayer> find(const LayerRef& ref) {
    const LayerRef actual = actual_ref(project_, ref);
    std::optional<StoredLayer> layer = store_.find(actual);
    const LayerRecipe* recipe = project_.layer(ref);
    if (!layer) {
      whole_ = false;
      if (recipe) missing_.insert(actual.str() + " is not in the store");
    }
    const auto built_from = layer ? layer->labels.find(kRecipeLabel) : std::map<std::string, std::string>::iterator{};
    if (layer && recipe && built_from != layer->labels.end() && built_from->second != recipe->digest().str()) {
      missing_.insert(actual.str() + " was built from another entry of dsec.yaml");
      layer.reset();
      whole_ = false;
    }
    return layer;
  }

  void refuse_missing() const {
    if (!whole_) throw_missing(project_, store_, {missing_.begin(), missing_.end()});
  }

 private:
  const Project& project_;
  LayerStore& store_;
  std::set<std::string> missing_;
  bool whole_ = true;
};

template <typename Entries>
void keep_old(Entries& entries, const Entries& old, const std::string& key) {
  if (const auto found = old.find(key); found != old.end()) entries.insert(*found);
}

}  // namespace

Lock make_lock(const Project& project, LayerStore& store, WhenMissing when, const std::optional<Lock>& old) {
  Lock lock;
  lock.args = project.args;
  lock.builder = kVersion;
  lock.kernel = kernel_release();
  Pinning pinning(project, store);
  for (const LayerRecipe& recipe : project.layers) {
    if (const std::optional<StoredLayer> layer = pinning.find(LayerRef::parse(recipe.ref()))) {
      lock.layers.emplace(recipe.ref(),
                          LockedLayer{layer->digest, layer->manifest.provenance.inputs, recipe.digest().str()});
      lock.mkfs = layer->manifest.provenance.mkfs;
      lock.platform = layer->manifest.platform;
    } else if (old) {
      keep_old(lock.layers, old->layers, recipe.ref());
    }
  }
  for (const EnvironmentSpec& spec : project.environments) {
    std::vector<Digest> stack;
    for (const LayerRef& ref : spec.layers()) {
      const std::optional<StoredLayer> layer = pinning.find(ref);
      if (!layer) continue;
      stack.push_back(layer->digest);
      // A layer that the project does not make is pinned as well, so that its name can be told from the lock.
      if (!project.layer(ref))
        lock.layers.try_emplace(ref.str(), LockedLayer{layer->digest, layer->manifest.provenance.inputs, ""});
    }
    if (stack.size() == spec.layers().size())
      lock.environments.emplace(spec.name, std::move(stack));
    else if (old)
      keep_old(lock.environments, old->environments, spec.name);
  }
  if (when == WhenMissing::Refuse) pinning.refuse_missing();
  return lock;
}

void write_lock(const Project& project, const Lock& lock, LayerStore& store) {
  std::vector<Digest> layers;
  for (const auto& [ref, layer] : lock.layers) layers.push_back(layer.digest);
  for (const auto& [name, digests] : lock.environments) layers.insert(layers.end(), digests.begin(), digests.end());
  const fs::path path = lock_path(project);
  write_file_atomic(path, lock.str());
  store.register_lock(path, layers);
}

std::vector<LayerRef> layers_of(const Project& project, const std::optional<Lock>& lock, const EnvironmentSpec& spec) {
  std::vector<LayerRef> refs = spec.layers();
  if (lock) {
    if (const auto pinned = lock->environments.find(spec.name); pinned != lock->environments.end()) {
      if (pinned->second.size() != refs.size())
        throw usage_error("environment " + quote(spec.name) + " has " + std::to_string(refs.size()) +
                          " layers, but dsec.lock pins " + std::to_string(pinned->second.size()))
            .hint("dsec env lock, after dsec build");
      for (std::size_t i = 0; i < refs.size(); ++i) refs[i] = LayerRef::of(pinned->second[i]);
      return refs;
    }
  }
  for (LayerRef& ref : refs) ref = actual_ref(project, ref);
  return refs;
}

ResolvedEnvironment resolve_environment(const Project& project, const std::optional<Lock>& lock, std::string_view name,
                                        LayerStore& store) {
  ResolvedEnvironment resolved{environment_of(project, name), {}};
  const std::vector<LayerRef> named = resolved.spec.layers(), wanted = layers_of(project, lock, resolved.spec);
  std::vector<std::string> missing;
  bool whole = true;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::optional<StoredLayer> layer = store.find(wanted[i])) {
      resolved.layers.push_back(*std::move(layer));
      continue;
    }
    whole = false;
    const bool pinned = wanted[i].digest_prefix && !named[i].digest_prefix;
    if (pinned || project.layer(named[i]))
      missing.push_back(named[i].str() + (pinned ? " (" + wanted[i].str() + ")" : "") + " is not in the store");
  }
  if (!whole)
    throw_missing(project, store, std::move(missing), [&](const LayerReference& other) { return other.by == name; });
  return resolved;
}

std::string_view to_string(EnvironmentFinding::Kind kind) {
  switch (kind) {
    case EnvironmentFinding::Kind::Missing:
      return "missing";
    case EnvironmentFinding::Kind::Changed:
      return "changed";
    case EnvironmentFinding::Kind::Moved:
      return "moved";
    case EnvironmentFinding::Kind::Drift:
      return "drift";
    case EnvironmentFinding::Kind::Conflict:
      return "conflict";
    case EnvironmentFinding::Kind::Hides:
      return "hides";
  }
  return "unknown";
}

std::vector<std::string> built_on_drift(std::span<const StoredLayer> layers) {
  std::vector<std::string> drift;
  std::set<Digest> below;
  for (const StoredLayer& layer : layers) {
    const std::optional<Digest>& built_on = layer.manifest.provenance.built_on;
    if (built_on && !below.empty() && !below.contains(*built_on))
      drift.push_back(layer.manifest.name.str() + " was built on " + built_on->brief() + ", but stands on " +
                      layers.front().manifest.name.str() + " " + layers.front().digest.brief());
    below.insert(layer.digest);
  }
  return drift;
}

namespace {

constexpr std::size_t kHiddenLimit = 100;  // per environment: a rebuilt system in a toolkit hides thousands

void add_hidden_files(std::vector<EnvironmentFinding>& findings, const EnvironmentSpec& spec,
                      std::span<const StoredLayer> layers, LayerStore& store) {
  const std::vector<HiddenFile> hidden = find_hidden_files(store, layers, kHiddenLimit + 1);
  for (std::size_t i = 0; i < hidden.size() && i < kHiddenLimit; ++i)
    findings.push_back({EnvironmentFinding::Kind::Hides, spec.name,
                        quote(hidden[i].path) + " of " + hidden[i].lower + " is " +
                            (hidden[i].deleted ? "deleted" : "replaced") + " by " + hidden[i].upper});
  if (hidden.size() > kHiddenLimit)
    findings.push_back({EnvironmentFinding::Kind::Hides, spec.name,
                        "more than " + std::to_string(kHiddenLimit) + " files are hidden"});
}

}  // namespace

std::vector<std::string> built_on_drift(const Project& project, LayerStore& store) {
  std::vector<std::string> drift;
  const std::optional<Lock> lock = read_lock(project);
  for (const EnvironmentSpec& spec : project.environments) {
    try {
      for (const std::string& text : built_on_drift(resolve_environment(project, lock, spec.name, store).layers))
        drift.push_back(spec.name + ": " + text);
    } catch (const Error& error) {
      // An environment that is not whole yet has nothing to drift from.
      if (error.kind() != ErrorKind::Usage) throw;
    }
  }
  return drift;
}

namespace {

// How the files that a layer is made from differ from those that were locked; empty when they do not. What lies
// elsewhere is not looked at.
std::string changed_inputs(const Project& project, const LayerRecipe& recipe, const LockedLayer& locked) {
  if (has_remote_input(recipe)) return "";
  try {
    Progress silent;
    const auto inputs = open_inputs(project, recipe, {.offline = false, .spool = fs::temp_directory_path()}, silent);
    return input_digests(recipe, inputs) == own_inputs(locked.inputs) ? "" : "its files are not those that were locked";
  } catch (const Error& error) {
    return "its files cannot be read: " + error.message();
  }
}

}  // namespace

std::vector<EnvironmentFinding> check_environments(const Project& project, const std::optional<Lock>& lock,
                                                   std::string_view name, LayerStore& store,
                                                   engine::LayerMounter& mounter) {
  using Kind = EnvironmentFinding::Kind;
  std::vector<EnvironmentFinding> findings;
  std::vector<const EnvironmentSpec*> specs;
  if (name.empty())
    for (const EnvironmentSpec& spec : project.environments) specs.push_back(&spec);
  else
    specs.push_back(&environment_of(project, name));

  if (!lock) {
    findings.push_back({Kind::Missing, lock_path(project).native(), "there is no dsec.lock; dsec env lock writes it"});
  } else {
    for (const LayerRecipe& recipe : project.layers) {
      const auto pinned = lock->layers.find(recipe.ref());
      if (pinned == lock->layers.end())
        findings.push_back({Kind::Changed, recipe.ref(), "it is not in dsec.lock"});
      else if (pinned->second.recipe != recipe.digest().str())
        findings.push_back({Kind::Changed, recipe.ref(), "its entry in dsec.yaml is not the one that was locked"});
      else if (const std::string change = changed_inputs(project, recipe, pinned->second); !change.empty())
        findings.push_back({Kind::Changed, recipe.ref(), change});
    }
    for (const auto& [ref, layer] : lock->layers) {
      const std::optional<StoredLayer> now = store.find(LayerRef::parse(ref));
      if (now && now->digest != layer.digest)
        findings.push_back(
            {Kind::Moved, ref, "it is " + now->digest.brief() + " now, locked was " + layer.digest.brief()});
    }
  }
  for (const EnvironmentSpec* spec : specs) {
    try {
      const ResolvedEnvironment resolved = resolve_environment(project, lock, spec->name, store);
      for (std::string& text : built_on_drift(resolved.layers))
        findings.push_back({Kind::Drift, spec->name, std::move(text)});
      if (!spec->accept_conflicts)
        for (const engine::StackConflict& conflict : mounter.conflicts(resolved.layers))
          findings.push_back(
              {Kind::Conflict, spec->name,
               quote(conflict.path) + ": " + conflict.what + ", of " + conflict.upper + " over " + conflict.lower});
      add_hidden_files(findings, *spec, resolved.layers, store);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Usage) throw;
      findings.push_back({Kind::Missing, spec->name, error.message()});
    }
  }
  return findings;
}

}  // namespace dsec::layers
