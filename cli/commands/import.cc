#include "layers/import.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/build_secrets.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/layer_json.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/build/builder.h"
#include "layers/disk/disk_image.h"
#include "layers/dockerfile/request.h"
#include "layers/open_source.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string name, source, platform, history;
  std::optional<std::string> to;
  std::string compression = "none";
  std::optional<std::uint64_t> collapse_limit, unpacked, entries, path_bytes, ratio;
  std::vector<std::string> labels, secrets;
  bool pull = false;
};

bool is_git(const Options& options) { return options.source.rfind("git:", 0) == 0; }

std::string source_text(const Options& options) {
  if (options.history.empty()) return options.source;
  if (!is_git(options)) throw usage_error("--history is for git: sources");
  const bool has_query = options.source.find('?') != std::string::npos;
  return options.source + (has_query ? "&" : "?") + "history=" + options.history;
}

layers::ImportOptions import_options(const Options& options) {
  const LayerRef ref = LayerRef::parse(options.name);
  if (!ref.name || !ref.tag)
    throw usage_error(quote(options.name) + " is no name for a new layer").hint("write KIND/NAME or KIND/NAME:TAG");
  layers::ImportOptions out{.name = *ref.name, .tag = *ref.tag};
  out.to = options.to.value_or(is_git(options) ? "/workspace" : "/");
  out.platform = options.platform;
  out.compression = options.compression;
  out.collapse_limit = options.collapse_limit.value_or(out.collapse_limit);
  out.limits.unpacked_bytes = options.unpacked.value_or(out.limits.unpacked_bytes);
  out.limits.entries = options.entries.value_or(out.limits.entries);
  out.limits.path_bytes = options.path_bytes.value_or(out.limits.path_bytes);
  out.limits.ratio = options.ratio.value_or(out.limits.ratio);
  if (out.limits.ratio == 0)
    throw usage_error("--max-ratio 0 would refuse every input").hint("1 refuses what is packed at all");
  out.labels = parse_labels(options.labels);
  return out;
}

void refuse_for_dockerfile(const Options& options) {
  if (options.to || !options.history.empty() || options.compression != "none" || options.collapse_limit ||
      options.unpacked || options.entries || options.path_bytes || options.ratio)
    throw usage_error(
        "of the options of dsec import only --platform, --label, --pull and --secret are for dockerfile: sources");
}

engine::StoredLayer build(const Options& options, const layers::ImportOptions& wanted, Invocation& call) {
  refuse_for_dockerfile(options);
  Wiring& wiring = call.wiring();
  layers::LayerRecipe recipe{.name = wanted.name, .tag = wanted.tag, .from = options.source};
  recipe.platform = wanted.platform;
  recipe.labels = wanted.labels;
  const std::size_t jobs = std::max(1u, std::thread::hardware_concurrency());
  return layers::build_one(recipe, std::filesystem::current_path(),
                           {.targets = {},
                            .pull = options.pull,
                            .secrets = parse_secrets(options.secrets),
                            .jobs = jobs,
                            .on_failure = {}},
                           {.store = wiring.layer_store(),
                            .engine = [&wiring]() -> engine::LocalEngine& { return wiring.local_engine(); },
                            .cache = wiring.home().cache() / "build",
                            .progress = call.progress(),
                            .images = wiring.images()})
      .layer;
}

engine::StoredLayer take_disk(const Options& options, const layers::ImportOptions& wanted, Invocation& call) {
  if (options.to || !options.history.empty() || options.compression != "none" || options.collapse_limit ||
      options.unpacked || options.entries || options.path_bytes || options.ratio || options.pull ||
      !options.secrets.empty())
    throw usage_error("of the options of dsec import only --platform and --label are for disk: sources");
  return layers::import_disk(call.wiring().layer_store(), layers::DiskRequest::parse(options.source), wanted,
                             call.progress());
}

engine::StoredLayer make(const Options& options, const layers::ImportOptions& wanted, Invocation& call) {
  if (layers::dockerfile::Request::is_one(options.source)) return build(options, wanted, call);
  if (layers::DiskRequest::is_one(options.source)) return take_disk(options, wanted, call);
  if (options.pull || !options.secrets.empty()) throw usage_error("--pull and --secret are for dockerfile: sources");
  const std::unique_ptr<layers::Source> source = layers::open_source(
      source_text(options), {.directory = {}, .spool = call.wiring().home().cache(), .images = call.wiring().images()});
  return layers::import_layer(call.wiring().layer_store(), *source, wanted, call.progress());
}

void run(const Options& options, Invocation& call) {
  const layers::ImportOptions wanted = import_options(options);
  const engine::StoredLayer layer = make(options, wanted, call);
  call.end_progress();
  if (call.out().json()) return call.out().json(to_json(layer, false));
  call.out().line(wanted.name.str() + ":" + wanted.tag + " " + layer.digest.str() + " " +
                  format_size(layer.manifest.total_size()));
}

}  // namespace

void add_import(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb =
      root.verb("import", "Make a layer of an image, an archive, a folder, a git repository, a Dockerfile or a disk");
  verb.positional("NAME", options->name, "KIND/NAME[:TAG] of the new layer; KIND: base, workspace, toolkit");
  verb.positional("SOURCE", options->source,
                  "docker://HOST/REPO[:TAG|@DIGEST], oci-layout:DIR[:REF], oci-archive:FILE, "
                  "docker-archive:FILE[:REF], tar:FILE|-, dir:PATH, git:PATH|URL@REV, overlaybd:FILE[,FILE], "
                  "debootstrap:SUITE, dockerfile:DIR or disk:FILE");
  verb.option("--to", "PATH", options->to,
              "Where the files go inside the layer (default: /workspace for git, / otherwise)");
  verb.option("--platform", "OS/ARCH", options->platform, "Which image of an index (default: this host's)");
  verb.choice("--history", options->history, {"past", "none", "full"},
              "Of a git source: what existed at the commit, no .git, or everything (default: past)");
  verb.choice("--compress", options->compression, {"none", "lz4", "zstd"}, "Compress the layer");
  verb.size("--collapse-limit", options->collapse_limit,
            "Layers of one image become one up to this size (default: 3GB)");
  verb.size("--max-unpacked", options->unpacked, "Refuse an input that unpacks to more (default: 1TiB)");
  verb.number("--max-entries", options->entries, "Refuse an input with more entries (default: 20000000)");
  verb.size("--max-path", options->path_bytes, "Refuse an input with a longer path (default: 4096)");
  verb.number("--max-ratio", options->ratio, "Refuse an input that was packed more than so many times (default: 1000)");
  verb.flag("--pull", options->pull, "Ask registries whether the images that a Dockerfile is FROM have moved");
  verb.options("--secret", "id=NAME,src=FILE", options->secrets,
               "A secret for RUN --mount=type=secret in a Dockerfile; also id=NAME,env=VARIABLE");
  verb.options("-l,--label", "KEY=VALUE", options->labels, "Label of the layer in the store");
  verb.example("dsec import base/python:3.11 docker://docker.io/library/python:3.11");
  verb.example("dsec import base/python:3.11 oci-archive:python.tar");
  verb.example("dsec import workspace/toolz git:./toolz@3f2c9d1");
  verb.example("dsec import base/task 'dockerfile:task/environment?target=test'");
  verb.example("mmdebstrap --variant=minbase stable | dsec import base/debian tar:-");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
