#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/fetch.h"
#include "cli/invocation.h"
#include "cli/lock_files.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/model/environment_spec.h"
#include "registry/store/local_store.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> what, locks, registries, args;
  std::string file;
};

std::vector<LayerRef> wanted(const Options& options) {
  std::vector<LayerRef> refs;
  const auto args = parse_labels(options.args);
  for (const auto& text : options.what) {
    if (valid_environment_name(text) && has_environment(text, options.file, args))
      for (const LayerRef& ref : request_of_environment(text, options.file, args).layers) refs.push_back(ref);
    else
      refs.push_back(LayerRef::parse(text));
  }
  for (const auto& [layer, file] : locked_layers(options.locks)) refs.push_back(LayerRef::of(layer));
  if (refs.empty())
    throw usage_error("nothing is named that is to come here").hint("name layers, environments, or --locks FILE");
  return refs;
}

bool is_whole(registry::LocalStore& store, const engine::StoredLayer& layer) {
  for (const LayerImage& image : layer.manifest.images)
    for (const Blob& blob : image.blobs)
      if (!store.has_blob(blob.digest)) return false;
  return true;
}

// False when all of it was here.
bool fetch_data(registry::LocalStore& store, const engine::StoredLayer& layer) {
  if (is_whole(store, layer)) return false;
  for (const LayerImage& image : layer.manifest.images)
    for (const Blob& blob : image.blobs) store.blob_path(blob.digest);
  return true;
}

void run(const Options& options, Invocation& call) {
  registry::LocalStore& store = call.wiring().store();
  const std::vector<LayerRef> refs = wanted(options);
  std::vector<bool> was_here;
  for (const LayerRef& ref : refs) was_here.push_back(store.find(ref).has_value());
  const std::vector<engine::StoredLayer> layers = find_or_pull(call, refs, options.registries);
  call.end_progress();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    bool fetched = fetch_data(store, layers[i]);
    for (const Digest& lower : layers[i].manifest.lowers)
      fetched = fetch_data(store, store.get(LayerRef::of(lower))) || fetched;
    const std::uint64_t bytes = layers[i].manifest.total_size();
    const bool brought = fetched || !was_here[i];
    if (call.out().json())
      call.out().json_line({{"ref", refs[i].str()},
                            {"digest", layers[i].digest.str()},
                            {"bytes", bytes},
                            {"result", brought ? "brought" : "here"}});
    else
      call.out().line(refs[i].str() + " " + layers[i].digest.str() + ": " + format_size(bytes) +
                      (brought ? " brought here" : " here already"));
  }
}

}  // namespace

void add_cache_warm(Command& cache) {
  auto options = std::make_shared<Options>();
  Command& verb = cache.verb("warm", "Bring layers here with all their data");
  verb.positionals("ENV|REF", options->what, "Environments of dsec.yaml, or layers", 0);
  verb.option("-f,--file", "FILE", options->file, "Where environments are described (default: dsec.yaml)");
  verb.options("--arg", "NAME=VALUE", options->args, "Value of ${NAME} in that file");
  declare_locks(verb, options->locks, "The layers that a dsec.lock names");
  verb.options("--registry", "NAME|URL", options->registries,
               "Where to pull layers from that are not here (default: all that are configured)");
  verb.note("With -o json, one object a line.");
  verb.example("dsec cache warm toolz-1");
  verb.example("dsec cache warm --locks tasks/a/dsec.lock --locks tasks/b/dsec.lock");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
