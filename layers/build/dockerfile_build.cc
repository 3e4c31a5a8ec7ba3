#include "layers/build/dockerfile_build.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/build/merge_source.h"
#include "layers/build/run_step.h"
#include "layers/build/schedule.h"
#include "layers/build/stack_lookup.h"
#include "layers/build/step_cache.h"
#include "layers/dir/scrub.h"
#include "layers/dockerfile/copy_files.h"
#include "layers/dockerfile/plan.h"
#include "layers/erofs/mkfs.h"
#include "layers/import.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using dockerfile::CopyFiles;
using dockerfile::Instruction;
using dockerfile::MakeDirectory;
using dockerfile::Operation;
using dockerfile::Request;
using dockerfile::RunCommand;
using dockerfile::Selection;
using dockerfile::StackOrigin;
using dockerfile::Stage;
using engine::StoredLayer;
using std::chrono::steady_clock;

/// What `python:3.11` of a Dockerfile is called here.
LayerRef layer_of_image(std::string image) {
  if (const std::size_t slash = image.find('/');
      slash != std::string::npos && parse_layer_kind(std::string_view(image).substr(0, slash)))
    return LayerRef::parse(image);
  for (const std::string_view prefix : {"docker.io/", "library/"})
    if (image.starts_with(prefix)) image.erase(0, prefix.size());
  if (image.find('@') != std::string::npos)
    throw usage_error("the digest of an image is none of a layer").hint("FROM base/NAME@sha256:DIGEST names a layer");
  return LayerRef::parse("base/" + image);
}

/// Gives a tree the directories above its entries as the layer below has them: within one layer the images are stacked
/// as they are.
class WholeTree final : public Source {
 public:
  WholeTree(std::unique_ptr<Source> changes, engine::LayerStore& store, const std::vector<StoredLayer>& base)
      : changes_(std::move(changes)), store_(store), base_(base) {
    for (const StoredLayer& layer : base)
      implicit_.insert(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end());
  }

  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    return changes_->examine(options, progress);
  }

  void emit(std::size_t image, TreeSink& sink) override {
    StackOrigin below(store_, base_);
    Parents parents(sink, below, *this);
    parents.root();
    changes_->emit(image, parents);
  }

  /// Directories that have attributes of their own in the image.
  const std::set<std::string>& own() const noexcept { return own_; }

 private:
  class Parents final : public TreeSink {
   public:
    Parents(TreeSink& under, StackOrigin& below, WholeTree& tree) : under_(under), below_(below), tree_(tree) {}

    void root() {
      if (tree_.base_.empty()) root_ = Entry{.path = "", .type = EntryType::Directory, .mode = 0755};
    }
    void entry(const Entry& entry) override {
      if (entry.path.empty()) {
        root_.reset();
      } else {
        if (root_) give(*std::exchange(root_, std::nullopt));
        need(dockerfile::parent_of(entry.path));
      }
      give(entry);
    }
    void data(std::string_view bytes) override { under_.data(bytes); }

   private:
    void give(const Entry& entry) {
      if (entry.type == EntryType::Directory) {
        known_.insert(entry.path);
        tree_.own_.insert(entry.path);
      }
      under_.entry(entry);
    }
    void need(const std::string& path) {
      if (!known_.insert(path).second) return;
      if (!path.empty()) need(dockerfile::parent_of(path));
      if (tree_.base_.empty() || tree_.implicit_.contains(path)) return;
      if (const std::optional<Entry> found = below_.find(path); found && found->type == EntryType::Directory)
        give(*found);
    }

    TreeSink& under_;
    StackOrigin& below_;
    WholeTree& tree_;
    std::set<std::string> known_;
    std::optional<Entry> root_;
  };

  std::unique_ptr<Source> changes_;
  engine::LayerStore& store_;
  const std::vector<StoredLayer>& base_;
  std::set<std::string> implicit_, own_;
};

/// A stage while it is built.
struct StageWork {
  std::vector<StoredLayer> base;  // what it is FROM, unless scratch
  std::vector<StoredLayer> made;  // what its instructions, and those of the stage it stands on, left
  std::vector<Digest> keys;       // of each operation
  std::vector<std::unique_ptr<Selection>> selections;  // of each operation that copies from the context
  Digest key = Digest::of("scratch");                  // of the whole

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
        context_(request_.directory, request_.read_ignore_list()) {}

  DockerfileOutcome run() {
    check_recipe();
    plan_ = dockerfile::make_plan(
        request_.read(), request_, host_platform(),
        [this](const std::string& image, const Instruction& from) { return image_layer(image, from).manifest.config; });
    for (const Stage& stage : plan_.stages) work_.push_back(prepare(stage));
    const Digest whole = Digest::of("dockerfile\n" + job_.recipe.digest().str() + "\n" + work_.back().key.str() + "\n" +
                                    canonical_json(to_json(plan_.stages.back().config)));
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

  const StoredLayer& image_layer(const std::string& image, const Instruction& from) {
    if (const auto known = images_.find(image); known != images_.end()) return known->second;
    const std::string origin = (request_.directory / request_.file).native();
    std::optional<LayerRef> ref;
    try {
      ref = layer_of_image(image);
    } catch (const Error& error) {
      throw dockerfile::error_at(origin, from, quote(image) + " names no layer: " + error.message());
    }
    std::optional<StoredLayer> layer = job_.layer(*ref);
    if (!layer)
      throw dockerfile::error_at(origin, from,
                                 "there is no layer " + ref->str() + ", and images are not fetched from registries yet")
          .hint("dsec import " + ref->str() + " oci-archive:FILE, or another source that dsec-sources(7) lists");
    if (layer->manifest.provenance.built_on || !layer->manifest.lowers.empty())
      throw dockerfile::error_at(origin, from, ref->str() + " stands on another layer, and is no whole tree")
          .hint("name a base, or build this layer as steps of dsec.yaml");
    return images_.emplace(image, *std::move(layer)).first->second;
  }

  // ---- keys: what would be made, before anything is ----

  StageWork prepare(const Stage& stage) {
    StageWork work;
    if (stage.on_stage) {
      work.key = work_[*stage.on_stage].key;
    } else if (stage.image != "scratch") {
      work.base.push_back(image_layer(stage.image, stage.from));
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
    // JSON would not tell bytes apart that are no UTF-8.
    const Digest text = Digest::of(operation.instruction.text);
    Json json = {{"parent", work.key.str()}, {"text", text.str()}, {"version", 1}};
    if (const auto* run = std::get_if<RunCommand>(&operation.work)) {
      if (run->host_network && options_.offline)
        throw usage_error("the command has the host's network").hint("dsec build without --offline");
      json["run"] = {{"argv", run->argv}, {"args", run->args}, {"host", run->host_network}};
      json["settings"] = to_json(operation.config);
      json["scrub"] = scrub().text();
    } else if (const auto* copy = std::get_if<CopyFiles>(&operation.work)) {
      json["copy"] = {{"to", copy->to},
                      {"into", copy->into},
                      {"owner", copy->owner},
                      {"unpack", copy->unpack},
                      {"exclude", copy->exclude},
                      {"sources", copy->sources},
                      {"mode", copy->mode ? Json(*copy->mode) : Json()}};
      json["from"] = copied_from(*copy, operation, work);
    } else {
      json["directory"] = std::get<MakeDirectory>(operation.work).path;
      json["owner"] = operation.config.user;
    }
    return json;
  }

  std::string copied_from(const CopyFiles& copy, const Operation& operation, StageWork& work) {
    if (copy.from_stage) return "stage " + work_[*copy.from_stage].key.str();
    if (!copy.from_image.empty()) return "layer " + image_layer(copy.from_image, operation.instruction).digest.str();
    work.selections.back() = std::make_unique<Selection>(Selection::make(context_, copy, ports_.cache));
    return work.selections.back()->digest().str();
  }

  std::vector<std::vector<std::size_t>> dependencies() const {
    std::vector<std::vector<std::size_t>> after(plan_.stages.size());
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      const Stage& stage = plan_.stages[i];
      if (stage.on_stage) after[i].push_back(*stage.on_stage);
      for (const Operation& operation : stage.operations)
        if (const auto* copy = std::get_if<CopyFiles>(&operation.work); copy && copy->from_stage)
          after[i].push_back(*copy->from_stage);
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
    if (const auto* run = std::get_if<RunCommand>(&operation.work))
      return run_command(operation, *run, stack, work.keys[i]);
    StackOrigin into(ports_.store, stack);
    if (const auto* directory = std::get_if<MakeDirectory>(&operation.work))
      return make_step(dockerfile::make_directory_source(into, directory->path, operation.config.user));
    const CopyFiles& copy = std::get<CopyFiles>(operation.work);
    if (work.selections[i]) {
      // Stages are built at the same time, and the context is read by one at a time.
      const std::lock_guard guard(context_mutex_);
      return make_step(work.selections[i]->place(into, copy));
    }
    const std::vector<StoredLayer> from =
        copy.from_stage ? work_[*copy.from_stage].stack() : std::vector{images_.at(copy.from_image)};
    StackOrigin origin(ports_.store, from);
    Selection selection = Selection::make(origin, copy, ports_.cache);
    return make_step(selection.place(into, copy));
  }

  std::optional<StoredLayer> make_step(const std::unique_ptr<Source>& source) const {
    if (!source) return std::nullopt;
    Progress silent;
    SourceFacts facts = source->examine({}, silent);
    return job_.make_step(*source, std::move(facts));
  }

  StoredLayer run_command(const Operation& operation, const RunCommand& run, const std::vector<StoredLayer>& stack,
                          const Digest& key) {
    if (stack.empty()) throw usage_error("there is nothing to run in: the stage is FROM scratch, and empty");
    RunStep step{.argv = run.argv, .workdir = {}, .user = {}, .env = run.args, .network = {}};
    if (run.host_network) step.network.mode = NetworkMode::Host;
    StackLookup below(stack, ports_.store);
    return run_step({.recipe = job_.recipe,
                     .name = "line " + std::to_string(operation.instruction.line),
                     .step = step,
                     .stack = stack,
                     .settings = operation.config,
                     .scrub = scrub(),
                     .key = key},
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
    manifest.provenance.inputs = job_.inputs;
    manifest.provenance.mkfs = Mkfs::find().version;
    for (const Digest& key : work.keys) manifest.provenance.steps.push_back(key);
    if (!request_.target.empty()) manifest.provenance.options["target"] = request_.target;
    std::set<std::string> implicit;
    for (const StoredLayer& layer : work.base) {
      manifest.provenance.options["from"] = layer.digest.str();
      take_images(layer, *session, manifest);
      implicit.insert(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end());
    }
    if (!work.made.empty() || work.base.empty()) add_changes(work, whole, *session, manifest, implicit);
    manifest.implicit_parents.assign(implicit.begin(), implicit.end());
    const bool trusted = work.base.empty() || work.base[0].trusted;
    return ports_.store.add(manifest, "", trusted ? engine::Trust::BuiltHere : engine::Trust::Foreign, *session);
  }

  static void take_images(const StoredLayer& layer, engine::BlobSession& session, LayerManifest& manifest) {
    for (const LayerImage& image : layer.manifest.images) {
      for (const Blob& blob : image.blobs)
        if (!session.hold(blob.digest))
          throw failure("a blob of " + layer.manifest.name.str() + " is not in the store").hint("dsec pull the layer");
      manifest.images.push_back(image);
    }
  }

  void add_changes(const StageWork& work, const Digest& whole, engine::BlobSession& session, LayerManifest& manifest,
                   std::set<std::string>& implicit) {
    StackLookup below(work.base, ports_.store);
    SourceFacts facts;
    facts.identity = whole;
    WholeTree tree(make_merge_source(work.made, ports_.store, below, facts), ports_.store, work.base);
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
  dockerfile::ContextOrigin context_;
  std::mutex context_mutex_;
  dockerfile::Plan plan_;
  std::map<std::string, StoredLayer> images_;  // by the name that the Dockerfile gives
  std::vector<StageWork> work_;
  std::atomic<std::size_t> cached_ = 0;
};

}  // namespace

DockerfileOutcome build_dockerfile(const DockerfileJob& job, const BuildOptions& options, const BuildPorts& ports) {
  return DockerfileBuild(job, options, ports).run();
}

std::map<std::string, std::string> dockerfile_inputs(const LayerRecipe& recipe, const fs::path& directory) {
  const Request request = Request::parse(recipe.from, directory);
  (void)request.read();  // a file that is none is told before the context is read
  const fs::path file = request.directory / request.file;
  return {{"dockerfile", digest_of_file(file.native()).str()},
          {"context", dockerfile::ContextOrigin(request.directory, request.read_ignore_list()).digest().str()}};
}

std::vector<LayerRef> dockerfile_layers(const LayerRecipe& recipe, const fs::path& directory) {
  const Request request = Request::parse(recipe.from, directory);
  std::vector<LayerRef> layers;
  for (const auto& [image, instruction] : dockerfile::images_of(request.read(), request, host_platform())) {
    try {
      layers.push_back(layer_of_image(image));
    } catch (const Error&) {
      // The build tells it with its line.
    }
  }
  return layers;
}

}  // namespace dsec::layers
