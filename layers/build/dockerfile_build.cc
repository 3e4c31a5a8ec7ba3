#include "layers/build/dockerfile_build.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/http/shown_url.h"
#include "layers/build/base_images.h"
#include "layers/build/downloads.h"
#include "layers/build/merge_source.h"
#include "layers/build/run_mounts.h"
#include "layers/build/run_step.h"
#include "layers/build/schedule.h"
#include "layers/build/stack_lookup.h"
#include "layers/build/step_cache.h"
#include "layers/build/whole_tree.h"
#include "layers/dir/scrub.h"
#include "layers/dockerfile/copy_files.h"
#include "layers/dockerfile/operation_digest.h"
#include "layers/dockerfile/plan.h"
#include "layers/erofs/mkfs.h"
#include "layers/git/git_source.h"
#include "layers/import.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using dockerfile::CopyFiles;
using dockerfile::Instruction;
using dockerfile::MakeDirectory;
using dockerfile::NamedImage;
using dockerfile::Operation;
using dockerfile::Request;
using dockerfile::RunCommand;
using dockerfile::RunMount;
using dockerfile::Selection;
using dockerfile::StackOrigin;
using dockerfile::Stage;
using engine::StoredLayer;
using std::chrono::steady_clock;

// To write so much again takes longer than what one mount more costs every sandbox.
constexpr std::uint64_t kKeptWhole = 32 << 20;

/// A stage while it is built.
struct StageWork {
  std::vector<StoredLayer> base;  // what it is FROM, unless scratch
  std::vector<StoredLayer> made;  // what its instructions, and those of the stage it stands on, left
  std::vector<Digest> keys;       // of each operation
  std::vector<std::vector<std::unique_ptr<Selection>>> selections;  // of each operation, what it takes of the context
  Digest key = Digest::of("scratch");                               // of the whole

  std::vector<StoredLayer> stack() const {
    std::vector<StoredLayer> all = base;
    all.insert(all.end(), made.begin(), made.end());
    return all;
  }
};

class DockerfileBuild {
 public:
  DockerfileBuild(const DockerfileJob& job, const BuildOptions& options, const BuildPorts& ports)
      : job_(job),
        options_(options),
        ports_(ports),
        cache_(ports.cache, ports.store),
        request_(Request::parse(job.recipe.from, job.directory)),
        context_(job.context),
        downloads_(ports.cache.parent_path() / "downloads", options.offline, ports.progress),
        images_({.store = ports.store,
                 .cache = cache_,
                 .spool = ports.cache,
                 .images = ports.images,
                 .origin = (request_.directory / request_.file).native(),
                 .platform = host_platform(),
                 .offline = options.offline,
                 .pull = options.pull,
                 .locked = job.locked_images,
                 .layer = job.layer,
                 .progress = ports.progress}) {}

  DockerfileOutcome run() {
    check_recipe();
    const dockerfile::Dockerfile file = request_.read();
    if (options_.offline) images_.require(dockerfile::images_of(file, request_, host_platform()));
    plan_ = dockerfile::make_plan(file, request_, host_platform(),
                                  [this](const NamedImage& image) { return images_.get(image).manifest.config; });
    for (const Stage& stage : plan_.stages) work_.push_back(prepare(stage));
    const Digest whole = Digest::of("dockerfile\n" + job_.recipe.digest().str() + "\n" + work_.back().key.str() + "\n" +
                                    canonical_json(to_json(plan_.stages.back().config)) + canonical_json(inputs()));
    if (!options_.no_cache)
      if (std::optional<StoredLayer> cached = cache_.find(whole))
        return {*std::move(cached), true, operations(), operations()};
    run_in_order(plan_.stages.size(), dependencies(), options_.jobs, [this](std::size_t i) { build_stage(i); });
    StoredLayer layer = assemble(whole);
    cache_.put(whole, layer);
    return {std::move(layer), false, operations(), cached_};
  }

 private:
  template <typename Action>
  decltype(auto) naming(const Operation& operation, Action&& action) const {
    return attempt(
        plan_.origin + ":" + std::to_string(operation.instruction.line) + ": " + operation.instruction.brief(),
        std::forward<Action>(action));
  }

  void check_recipe() const {
    const LayerRecipe& recipe = job_.recipe;
    if (!recipe.to.empty() && recipe.to != "/")
      throw usage_error("a Dockerfile makes a whole tree: `to` is not for it");
    if (!recipe.compress.empty() && recipe.compress != "none")
      throw usage_error("what a Dockerfile makes shares files with what it is FROM, and is not compressed");
    if (!recipe.platform.empty() && recipe.platform != host_platform())
      throw usage_error("a Dockerfile is built for this host's platform, " + host_platform());
  }

  std::size_t operations() const {
    std::size_t count = 0;
    for (const Stage& stage : plan_.stages) count += stage.operations.size();
    return count;
  }

  /// What the layer is made from: the files, and the images of registries.
  std::map<std::string, std::string> inputs() const {
    std::map<std::string, std::string> all = job_.inputs;
    all.insert(images_.inputs().begin(), images_.inputs().end());
    return all;
  }

  const StoredLayer& layer_of(const std::string& image, const Operation& operation) {
    return images_.get({image, "", operation.instruction});
  }

  // ---- keys: what would be made, before anything is ----

  StageWork prepare(const Stage& stage) {
    StageWork work;
    if (stage.on_stage) {
      work.key = work_[*stage.on_stage].key;
    } else if (stage.image != "scratch") {
      work.base.push_back(images_.get({stage.image, stage.platform, stage.from}));
      work.key = work.base.back().digest;
    }
    for (const Operation& operation : stage.operations) {
      work.selections.emplace_back();
      naming(operation, [&] { work.key = Digest::of(canonical_json(key_of(operation, work))); });
      work.keys.push_back(work.key);
    }
    return work;
  }

  Json key_of(const Operation& operation, StageWork& work) {
    const Digest text = Digest::of(operation.instruction.text);
    Json json = {{"parent", work.key.str()},
                 {"text", text.str()},
                 {"texts", dockerfile::digest_of_texts(operation).str()},
                 {"version", 1}};
    if (const auto* run = std::get_if<RunCommand>(&operation.work)) {
      if (run->host_network && options_.offline)
        throw usage_error("the command has the host's network").hint("dsec build without --offline");
      json["run"] = {{"argv", run->argv}, {"args", run->args}, {"host", run->host_network}};
      if (!run->script.empty()) json["script"] = Digest::of(run->script).str();
      json["settings"] = to_json(operation.config);
      json["scrub"] = scrub().text();
      for (const RunMount& mount : run->mounts) json["mounts"].push_back(key_of(mount, operation, work));
    } else if (const auto* copy = std::get_if<CopyFiles>(&operation.work)) {
      json["copy"] = {{"to", copy->to},
                      {"into", copy->into},
                      {"owner", copy->owner},
                      {"unpack", copy->unpack},
                      {"exclude", copy->exclude},
                      {"sources", copy->sources},
                      {"mode", copy->mode ? Json(*copy->mode) : Json()}};
      json["from"] = copied_from(*copy, operation, work);
      for (const std::string& url : copy->urls)
        json["urls"].push_back({url, copy->checksum.empty() ? downloads_.look_up(url).str() : copy->checksum});
    } else {
      json["directory"] = std::get<MakeDirectory>(operation.work).path;
      json["owner"] = operation.config.user;
    }
    return json;
  }

  /// Neither the value of a secret nor what lies in a cache decides what a command makes.
  Json key_of(const RunMount& mount, const Operation& operation, StageWork& work) {
    Json json = {{"kind", mount.kind},           {"target", mount.target},
                 {"writable", mount.writable},   {"id", mount.id},
                 {"source", mount.source},       {"sharing", mount.sharing},
                 {"size", mount.size},           {"variable", mount.variable},
                 {"uid", mount.uid.value_or(0)}, {"gid", mount.gid.value_or(0)}};
    if (mount.mode) json["mode"] = *mount.mode;
    if (mount.required) json["required"] = true;
    if (mount.kind == RunMount::Kind::Bind) json["from"] = copied_from(bind_as_copy(mount), operation, work);
    return json;
  }

  std::string copied_from(const CopyFiles& copy, const Operation& operation, StageWork& work) {
    if (copy.from_stage) return "stage " + work_[*copy.from_stage].key.str();
    if (!copy.from_image.empty()) return "layer " + layer_of(copy.from_image, operation).digest.str();
    auto selection = std::make_unique<Selection>(Selection::make(context_, copy, ports_.cache));
    add_commits(copy, *selection);
    const Digest digest = selection->digest();
    work.selections.back().push_back(std::move(selection));
    return digest.str();
  }

  void add_commits(const CopyFiles& copy, Selection& selection) const {
    for (const std::string& repository : copy.repositories) {
      if (options_.offline)
        throw usage_error(quote(http::shown_url(repository)) + " needs a network").hint("dsec build without --offline");
      GitRequest request = GitRequest::parse(repository + "?history=none");
      request.scratch = ports_.cache;
      selection.add_commit(open_git_source(std::move(request)), ports_.progress);
    }
  }

  std::vector<std::vector<std::size_t>> dependencies() const {
    std::vector<std::vector<std::size_t>> after(plan_.stages.size());
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      const Stage& stage = plan_.stages[i];
      if (stage.on_stage) after[i].push_back(*stage.on_stage);
      for (const Operation& operation : stage.operations) {
        if (const auto* copy = std::get_if<CopyFiles>(&operation.work); copy && copy->from_stage)
          after[i].push_back(*copy->from_stage);
        if (const auto* run = std::get_if<RunCommand>(&operation.work))
          for (const RunMount& mount : run->mounts)
            if (mount.from_stage) after[i].push_back(*mount.from_stage);
      }
    }
    return after;
  }

  // ---- making ----

  void build_stage(std::size_t index) {
    const Stage& stage = plan_.stages[index];
    StageWork& work = work_[index];
    if (stage.on_stage) {
      work.base = work_[*stage.on_stage].base;
      work.made = work_[*stage.on_stage].made;
    }
    for (std::size_t i = 0; i < stage.operations.size(); ++i) {
      const Operation& operation = stage.operations[i];
      const std::string label = job_.recipe.ref() + " line " + std::to_string(operation.instruction.line) + " (" +
                                operation.instruction.brief() + ")";
      ports_.progress.begin(label);
      std::optional<StoredLayer> layer = options_.no_cache ? std::nullopt : cache_.find(work.keys[i]);
      if (layer) {
        ++cached_;
        ports_.progress.end(label, "cached");
      } else {
        const auto started = steady_clock::now();
        layer = naming(operation, [&] { return make(operation, work, i); });
        if (layer) cache_.put(work.keys[i], *layer);
        const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - started);
        ports_.progress.end(label, format_duration(took));
      }
      if (layer) work.made.push_back(*std::move(layer));
    }
  }

  // Empty when there is nothing to make: a directory that exists, an empty one that is copied.
  std::optional<StoredLayer> make(const Operation& operation, StageWork& work, std::size_t i) {
    const std::vector<StoredLayer> stack = work.stack();
    if (const auto* run = std::get_if<RunCommand>(&operation.work)) return run_command(operation, *run, work, i);
    StackOrigin into(ports_.store, stack);
    if (const auto* directory = std::get_if<MakeDirectory>(&operation.work))
      return make_step(dockerfile::make_directory_source(into, directory->path, operation.config.user));
    const CopyFiles& copy = std::get<CopyFiles>(operation.work);
    std::optional<StoredLayer> layer;
    selected(copy, work.selections[i], 0, [&](Selection& selection) {
      for (const std::string& url : copy.urls) selection.add_fetched(name_of(url, copy), fetched(url, copy));
      layer = make_step(selection.place(into, copy));
    });
    return layer;
  }

  /// What a COPY, or a bind that stands as one, takes: number `index` of what was found in the context before, or from
  /// a stage or image.
  void selected(const CopyFiles& copy, const std::vector<std::unique_ptr<Selection>>& found, std::size_t index,
                const std::function<void(Selection&)>& use) {
    if (!copy.from_stage && copy.from_image.empty()) {
      // Stages are built at the same time, and the context is read by one at a time.
      const std::lock_guard guard(context_mutex_);
      return use(*found.at(index));
    }
    std::vector<StoredLayer> from;
    if (copy.from_stage)
      from = work_[*copy.from_stage].stack();
    else
      from.push_back(known_image(copy.from_image));
    StackOrigin origin(ports_.store, from);
    Selection selection = Selection::make(origin, copy, ports_.cache);
    use(selection);
  }

  // All were asked for when the keys were made.
  const StoredLayer& known_image(const std::string& image) {
    const std::lock_guard guard(images_mutex_);
    return images_.get({image, "", plan_.stages.back().from});
  }

  // That it has in a directory; the destination may turn out to be one.
  static std::string name_of(const std::string& url, const CopyFiles& copy) {
    const std::string name = file_name_of(url);
    if (name.empty() && (copy.into || copy.urls.size() > 1))
      throw usage_error(quote(http::shown_url(url)) + " names no file")
          .hint("a destination that does not end with '/' gives it a name");
    return name;
  }

  UniqueFd fetched(const std::string& url, const CopyFiles& copy) {
    return downloads_.open(url, copy.checksum.empty() ? downloads_.look_up(url) : Digest::parse(copy.checksum));
  }

  std::optional<StoredLayer> make_step(const std::unique_ptr<Source>& source) const {
    if (!source) return std::nullopt;
    Progress silent;
    SourceFacts facts = source->examine({}, silent);
    return job_.make_step(*source, std::move(facts));
  }

  void add_mounts(const RunCommand& run, const std::vector<std::unique_ptr<Selection>>& found, RunMounts& mounts) {
    mounts.add_caches(run.mounts);
    std::size_t of_context = 0;
    for (const RunMount& mount : run.mounts) {
      if (mount.kind == RunMount::Kind::Tmpfs) mounts.add_tmpfs(mount);
      if (mount.kind != RunMount::Kind::Bind) continue;
      const bool context = !mount.from_stage && mount.from_image.empty();
      selected(bind_as_copy(mount), found, of_context,
               [&](Selection& selection) { mounts.add_bind(mount, selection); });
      if (context) ++of_context;
    }
    // Last, so that they lie about for as short as can be.
    for (const RunMount& mount : run.mounts)
      if (mount.kind == RunMount::Kind::Secret) mounts.add_secret(mount);
  }

  StoredLayer run_command(const Operation& operation, const RunCommand& run, const StageWork& work, std::size_t index) {
    const std::vector<StoredLayer> stack = work.stack();
    if (stack.empty()) throw usage_error("there is nothing to run in: the stage is FROM scratch, and empty");
    RunStep step{.argv = run.argv, .workdir = {}, .user = {}, .env = run.args, .network = {}};
    if (run.host_network) step.network.mode = NetworkMode::Host;
    StackLookup below(stack, ports_.store);
    std::optional<StackOrigin> root;
    std::optional<RunMounts> mounts;
    if (!run.mounts.empty() || !run.script.empty()) {
      root.emplace(ports_.store, stack);
      mounts.emplace(
          RunMounts::Setting{.cache = ports_.cache.parent_path(), .secrets = options_.secrets, .root = *root});
      add_mounts(run, work.selections[index], *mounts);
      if (!run.script.empty()) step.argv = {mounts->add_script(run.script)};
    }
    return run_step({.recipe = job_.recipe,
                     .name = "line " + std::to_string(operation.instruction.line),
                     .step = step,
                     .stack = stack,
                     .settings = operation.config,
                     .scrub = scrub(),
                     .key = work.keys[index],
                     .mounts = mounts ? &mounts->mounts() : nullptr},
                    below, options_, ports_, job_.make_step);
  }

  // A Dockerfile says itself what is to go: later instructions may need what a list would take.
  Scrub scrub() const { return Scrub::only(job_.recipe.scrub); }

  StoredLayer assemble(const Digest& whole) {
    const StageWork& work = work_.back();
    const std::unique_ptr<engine::BlobSession> session = ports_.store.begin_session();
    LayerManifest manifest{.name = job_.recipe.name,
                           .platform = work.base.empty() ? host_platform() : work.base[0].manifest.platform,
                           .images = {},
                           .config = plan_.stages.back().config,
                           .provenance = {},
                           .implicit_parents = {},
                           .lowers = {}};
    manifest.provenance.source = "dockerfile";
    manifest.provenance.inputs = inputs();
    manifest.provenance.mkfs = Mkfs::find().version;
    for (const Digest& key : work.keys) manifest.provenance.steps.push_back(key);
    if (!request_.target.empty()) manifest.provenance.options["target"] = request_.target;
    std::set<std::string> implicit;
    for (const StoredLayer& layer : work.base) {
      manifest.provenance.options["from"] = layer.digest.str();
      take_images(layer, *session, manifest);
      implicit.insert(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end());
    }
    std::vector<StoredLayer> below = work.base, small;
    const auto merge_small = [&] {
      if (!small.empty()) add_merged(small, below, whole, *session, manifest, implicit);
      below.insert(below.end(), small.begin(), small.end());
      small.clear();
    };
    for (const StoredLayer& made : work.made) {
      if (!stays_as_it_is(made, work)) {
        small.push_back(made);
        continue;
      }
      merge_small();
      take_images(made, *session, manifest);
      below.push_back(made);
    }
    merge_small();
    if (manifest.images.empty()) add_merged({}, below, whole, *session, manifest, implicit);
    manifest.implicit_parents.assign(implicit.begin(), implicit.end());
    const bool trusted = work.base.empty() || work.base[0].trusted;
    return ports_.store.add(manifest, "", trusted ? engine::Trust::BuiltHere : engine::Trust::Foreign, *session);
  }

  /// Whether an image among those of the layer is better than to merge what it has with what other steps made: it is
  /// large, or alone. It must have all folders above what is in it with their attributes.
  static bool stays_as_it_is(const StoredLayer& made, const StageWork& work) {
    if (work.base.empty() || !made.manifest.implicit_parents.empty()) return false;
    return work.made.size() == 1 || made.manifest.total_size() >= kKeptWhole;
  }

  static void take_images(const StoredLayer& layer, engine::BlobSession& session, LayerManifest& manifest) {
    for (const LayerImage& image : layer.manifest.images) {
      for (const Blob& blob : image.blobs)
        if (!session.hold(blob.digest))
          throw failure("a blob of " + layer.manifest.name.str() + " is not in the store").hint("dsec pull the layer");
      manifest.images.push_back(image);
    }
  }

  /// As one image, what was made on `below`.
  void add_merged(const std::vector<StoredLayer>& made, const std::vector<StoredLayer>& below, const Digest& whole,
                  engine::BlobSession& session, LayerManifest& manifest, std::set<std::string>& implicit) {
    StackLookup lookup(below, ports_.store);
    SourceFacts facts;
    facts.identity = Digest::of(whole.str() + " image " + std::to_string(manifest.images.size()));
    WholeTree tree(make_merge_source(made, ports_.store, lookup, facts), ports_.store, below);
    Progress silent;
    const LayerManifest changes =
        make_layer(session, tree, {.name = job_.recipe.name, .tag = "", .platform = manifest.platform}, silent);
    manifest.images.insert(manifest.images.end(), changes.images.begin(), changes.images.end());
    implicit.insert(changes.implicit_parents.begin(), changes.implicit_parents.end());
    for (const std::string& path : tree.own()) implicit.erase(path);
  }

  const DockerfileJob& job_;
  const BuildOptions& options_;
  const BuildPorts& ports_;
  StepCache cache_;
  Request request_;
  dockerfile::ContextOrigin& context_;
  std::mutex context_mutex_;
  Downloads downloads_;
  dockerfile::Plan plan_;
  BaseImages images_;
  std::mutex images_mutex_;
  std::vector<StageWork> work_;
  std::atomic<std::size_t> cached_ = 0;
};

}  // namespace

DockerfileOutcome build_dockerfile(const DockerfileJob& job, const BuildOptions& options, const BuildPorts& ports) {
  return DockerfileBuild(job, options, ports).run();
}

std::map<std::string, std::string> dockerfile_inputs(const LayerRecipe& recipe, const fs::path& directory,
                                                     dockerfile::ContextOrigin& context) {
  const Request request = Request::parse(recipe.from, directory);
  const fs::path file = request.directory / request.file;
  return {{"dockerfile", digest_of_file(file.native()).str()}, {"context", context.digest().str()}};
}

std::shared_ptr<dockerfile::ContextOrigin> dockerfile_context(const LayerRecipe& recipe, const fs::path& directory,
                                                              const fs::path& cache) {
  const Request request = Request::parse(recipe.from, directory);
  (void)request.read();  // a file that is none is told before the context is looked at
  const std::string name = fs::absolute(request.directory / request.file).native();
  const fs::path digests = cache.empty() ? fs::path() : cache / ("context-" + Digest::of(name).hex());
  return std::make_shared<dockerfile::ContextOrigin>(request.directory, request.read_ignore_list(), digests);
}

std::vector<LayerRef> dockerfile_layers(const LayerRecipe& recipe, const fs::path& directory) {
  const Request request = Request::parse(recipe.from, directory);
  std::vector<LayerRef> layers;
  for (const NamedImage& image : dockerfile::images_of(request.read(), request, host_platform())) {
    try {
      const std::optional<LayerRef> named = named_layer_ref(image.name);
      layers.push_back(named ? *named : ImageName::parse(image.name).layer());
    } catch (const Error&) {
      // The build tells it with its line.
    }
  }
  return layers;
}

}  // namespace dsec::layers
