#include "core/engine/compose_spec.h"

#include <algorithm>
#include <iterator>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

// Where nobody says anything: the PATH that image-spec runners set, and a zone and a locale that are the same wherever
// the sandbox is made again.
constexpr const char* kDefaultEnvironment[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                               "TZ=UTC", "LANG=C.UTF-8"};

void override_text(std::string& target, const std::string& text) {
  if (!text.empty()) target = text;
}

void add_missing(std::vector<std::string>& target, const std::vector<std::string>& more) {
  for (const auto& word : more)
    if (std::find(target.begin(), target.end(), word) == target.end()) target.push_back(word);
}

void override_config(ImageConfig& config, const ImageConfig& over) {
  for (const auto& assignment : over.env) set_variable(config.env, assignment);
  override_text(config.workdir, over.workdir);
  override_text(config.user, over.user);
  override_text(config.stop_signal, over.stop_signal);
  if (!over.entrypoint.empty()) {
    config.entrypoint = over.entrypoint;
    config.command.clear();
  }
  if (!over.command.empty()) config.command = over.command;
  add_missing(config.exposed_ports, over.exposed_ports);
  add_missing(config.volumes, over.volumes);
  for (const auto& [name, value] : over.labels) config.labels[name] = value;
}

std::string names_of(const std::vector<StoredLayer>& layers, LayerKind kind) {
  std::string names;
  for (const StoredLayer& layer : layers)
    if (layer.manifest.name.kind == kind) names += (names.empty() ? "" : ", ") + layer.manifest.name.str();
  return names;
}

bool has(const std::vector<Digest>& digests, const Digest& digest) {
  return std::find(digests.begin(), digests.end(), digest) != digests.end();
}

/// The snapshot that stands on all others, if there is one.
const StoredLayer* top_snapshot(const std::vector<StoredLayer>& layers) {
  const StoredLayer* top = nullptr;
  for (const StoredLayer& layer : layers) {
    if (layer.manifest.name.kind != LayerKind::Snapshot) continue;
    if (!top || has(layer.manifest.lowers, top->digest))
      top = &layer;
    else if (!has(top->manifest.lowers, layer.digest))
      throw usage_error("snapshots " + top->manifest.name.str() + " and " + layer.manifest.name.str() +
                        " do not stand on each other")
          .hint("a sandbox is made of one snapshot and what that stands on");
  }
  return top;
}

/// What a snapshot stands on, itself, and toolkits over it: it says itself what lies below.
std::vector<StoredLayer> order_snapshot(std::vector<StoredLayer> layers, const StoredLayer& top) {
  std::vector<Digest> order = top.manifest.lowers;
  order.push_back(top.digest);
  std::vector<StoredLayer> ordered;
  for (const Digest& digest : order) {
    const auto found =
        std::find_if(layers.begin(), layers.end(), [&](const StoredLayer& layer) { return layer.digest == digest; });
    if (found == layers.end())
      throw usage_error("layer " + digest.brief() + ", which " + top.manifest.name.str() + " stands on, is missing");
    ordered.push_back(*found);
  }
  for (StoredLayer& layer : layers) {
    if (has(order, layer.digest)) continue;
    if (layer.manifest.name.kind != LayerKind::Toolkit)
      throw usage_error("layer " + layer.manifest.name.str() + " cannot be put under " + top.manifest.name.str() +
                        ", which stands on other layers")
          .hint("only toolkits can be added, and lie over the snapshot");
    ordered.push_back(std::move(layer));
  }
  return ordered;
}

void check_stack(const std::vector<StoredLayer>& layers) {
  const auto count = [&](LayerKind kind) {
    return std::count_if(layers.begin(), layers.end(),
                         [&](const StoredLayer& layer) { return layer.manifest.name.kind == kind; });
  };
  if (count(LayerKind::Base) == 0)
    throw usage_error("no base layer is given").hint("name one: --base base/NAME, or base/NAME among the layers");
  for (const LayerKind kind : {LayerKind::Base, LayerKind::Workspace})
    if (count(kind) > 1)
      throw usage_error("an environment has one " + std::string(to_string(kind)) + ", here are " +
                        names_of(layers, kind));
  for (std::size_t i = 0; i < layers.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (layers[i].digest == layers[j].digest)
        throw usage_error("layer " + layers[i].manifest.name.str() + " is given twice");
  // A layer without programs may say nothing of a platform.
  const StoredLayer* first = nullptr;
  for (const StoredLayer& layer : layers) {
    if (layer.manifest.platform.empty()) continue;
    if (first && first->manifest.platform != layer.manifest.platform)
      throw usage_error("layer " + layer.manifest.name.str() + " is for " + layer.manifest.platform + ", but " +
                        first->manifest.name.str() + " is for " + first->manifest.platform);
    first = &layer;
  }
}

}  // namespace

std::string variable_name(std::string_view assignment) {
  const std::string name(assignment.substr(0, assignment.find('=')));
  if (name.empty()) throw usage_error(quote(assignment) + " sets no variable").hint("write NAME=VALUE");
  if (assignment.find('\0') != std::string_view::npos) throw usage_error(quote(assignment) + " contains a zero byte");
  return name;
}

void set_variable(std::vector<std::string>& env, const std::string& assignment) {
  const std::string prefix = variable_name(assignment) + "=";
  const auto same = [&](const std::string& other) { return other.rfind(prefix, 0) == 0; };
  if (const auto found = std::find_if(env.begin(), env.end(), same); found != env.end())
    *found = assignment;
  else
    env.push_back(assignment);
}

ImageConfig merge_configs(std::span<const ImageConfig> bottom_to_top) {
  ImageConfig merged;
  merged.env.assign(std::begin(kDefaultEnvironment), std::end(kDefaultEnvironment));
  for (const ImageConfig& config : bottom_to_top)
    attempt("cannot use what a layer's image says of its commands", [&] { override_config(merged, config); });
  return merged;
}

SandboxRequest request_of(const EnvironmentSpec& environment, std::vector<LayerRef> layers) {
  SandboxRequest request{.layers = std::move(layers), .settings = {}, .entrypoint = {}};
  SandboxSpec& spec = request.settings;
  spec.environment = environment.name;
  spec.backend = environment.backend;
  spec.accept_conflicts = environment.accept_conflicts;
  for (const auto& [name, value] : environment.env) spec.config.env.push_back(name + "=" + value);
  spec.config.workdir = environment.workdir;
  spec.config.user = environment.user;
  spec.hostname = environment.hostname;
  spec.limits = environment.limits;
  spec.devices = environment.devices;
  spec.lifetime = environment.lifetime;
  spec.idle = environment.idle;
  spec.idle_pause = environment.idle_pause;
  spec.network = environment.network.mode;
  spec.network_plan = environment.network.plan;
  spec.labels = environment.labels;
  return request;
}

std::vector<StoredLayer> with_lowers(LayerStore& store, std::vector<StoredLayer> layers) {
  return with_lowers([&](const LayerRef& ref) { return store.get(ref); }, std::move(layers));
}

std::vector<StoredLayer> with_lowers(const std::function<StoredLayer(const LayerRef&)>& get,
                                     std::vector<StoredLayer> layers) {
  const auto given = [&](const Digest& digest) {
    return std::any_of(layers.begin(), layers.end(), [&](const StoredLayer& layer) { return layer.digest == digest; });
  };
  // What a snapshot stands on is a whole list, so none of these has to be looked at again.
  for (std::size_t i = 0, count = layers.size(); i < count; ++i) {
    const std::vector<Digest> lowers = layers[i].manifest.lowers;
    for (const Digest& lower : lowers)
      if (!given(lower)) layers.push_back(get(LayerRef::of(lower)));
  }
  return layers;
}

SandboxSpec compose_spec(std::vector<StoredLayer> layers, const SandboxRequest& request) {
  if (const StoredLayer* top = top_snapshot(layers)) {
    layers = order_snapshot(layers, *top);
  } else {
    std::stable_sort(layers.begin(), layers.end(), [](const StoredLayer& a, const StoredLayer& b) {
      return a.manifest.name.kind < b.manifest.name.kind;
    });
  }
  check_stack(layers);

  SandboxSpec spec = request.settings;
  std::vector<ImageConfig> configs;
  for (const StoredLayer& layer : layers) {
    spec.layers.push_back(layer.digest);
    configs.push_back(layer.manifest.config);
  }
  ImageConfig merged = merge_configs(configs);
  override_config(merged, spec.config);
  if (request.entrypoint) {
    merged.entrypoint = *request.entrypoint;
    merged.command.clear();
  }
  spec.config = std::move(merged);
  return spec;
}

std::vector<std::string> main_command(const ImageConfig& config, std::span<const std::string> args) {
  std::vector<std::string> argv = config.entrypoint;
  if (args.empty())
    argv.insert(argv.end(), config.command.begin(), config.command.end());
  else
    argv.insert(argv.end(), args.begin(), args.end());
  if (argv.empty() || argv.front().empty())
    throw usage_error("no command is given, and the layers have none").hint("put one after --");
  return argv;
}

}  // namespace dsec::engine
