#include "layers/branch/packer.h"

#include <algorithm>

#include "core/base/error.h"
#include "layers/branch/patch.h"
#include "layers/branch/tree_changes.h"
#include "layers/build/merge_source.h"
#include "layers/build/stack_lookup.h"
#include "layers/compose/oci_tar.h"
#include "layers/dir/upper_source.h"
#include "layers/import.h"

namespace dsec::layers {
namespace {

using engine::PackedLayer;
using engine::PackRequest;
using engine::StoredLayer;
using engine::WrittenTree;

std::string path_of(int directory) { return "/proc/self/fd/" + std::to_string(directory); }

class WarningList final : public Progress {
 public:
  void warn(std::string_view message) override { warnings.emplace_back(message); }
  std::vector<std::string> warnings;
};

std::unique_ptr<Source> upper_of(const WrittenTree& tree, Scrub scrub) {
  UpperRequest request{.upper = path_of(tree.upper), .lower = {}, .scrub = std::move(scrub), .ids = {}};
  if (tree.lower >= 0) request.lower = path_of(tree.lower);
  return open_upper_source(std::move(request));
}

Scrub scrub_of(const PackRequest& request) {
  return request.scrub ? Scrub::standard(request.leave_out) : Scrub::only(request.leave_out);
}

/// Counts what lies over files of toolkits.
class OverToolkits final : public TreeSink {
 public:
  OverToolkits(TreeSink& under, StackLookup& toolkits) : under_(under), toolkits_(toolkits) {}
  void entry(const Entry& entry) override {
    if (entry.type != EntryType::Directory && toolkits_.has(entry.path) && count++ == 0) first = entry.path;
    under_.entry(entry);
  }
  void data(std::string_view bytes) override { under_.data(bytes); }

  std::size_t count = 0;
  std::string first;

 private:
  TreeSink& under_;
  StackLookup& toolkits_;
};

/// A source as part of a snapshot: what the layer says of its making.
class Changes final : public Source {
 public:
  Changes(std::unique_ptr<Source> upper, std::string platform, StackLookup* toolkits)
      : upper_(std::move(upper)), platform_(std::move(platform)), toolkits_(toolkits) {}

  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    SourceFacts facts = upper_->examine(options, progress);
    facts.provenance.source = "sandbox";
    facts.platform = platform_;
    return facts;
  }
  void emit(std::size_t image, TreeSink& sink) override {
    if (!toolkits_) return upper_->emit(image, sink);
    OverToolkits counting(sink, *toolkits_);
    upper_->emit(image, counting);
    hidden_ = counting.count;
    first_hidden_ = counting.first;
  }

  std::size_t hidden() const noexcept { return hidden_; }
  const std::string& first_hidden() const noexcept { return first_hidden_; }

 private:
  std::unique_ptr<Source> upper_;
  std::string platform_;
  StackLookup* toolkits_;
  std::size_t hidden_ = 0;
  std::string first_hidden_;
};

class OciTarSink final : public TreeSink {
 public:
  explicit OciTarSink(int fd) : tar_(fd) {}
  void entry(const Entry& entry) override {
    if (is_whiteout(entry)) return tar_.deletion(entry.path);
    tar_.entry(entry);
    if (is_opaque(entry)) tar_.opaque(entry.path);
  }
  void data(std::string_view bytes) override { tar_.data(bytes); }
  void finish() { tar_.finish(); }

 private:
  OciTar tar_;
};

bool is_snapshot(const StoredLayer& layer) { return layer.manifest.name.kind == LayerKind::Snapshot; }

/// One layer on its way into the store.
class Packing {
 public:
  Packing(engine::LayerStore& store, const WrittenTree& tree, const PackRequest& request)
      : store_(store), tree_(tree), request_(request), session_(store.begin_session()) {
    if (!request.tag.empty() && !valid_tag(request.tag)) throw usage_error(quote(request.tag) + " is no tag");
    if (tree.layers.empty()) throw failure("the sandbox has no layers");
  }

  PackedLayer snapshot() {
    // Those that are not covered by a toolkit put on later.
    auto chain = tree_.layers.end();
    while (chain != tree_.layers.begin() && is_snapshot(*std::prev(chain))) --chain;
    const std::size_t length = static_cast<std::size_t>(tree_.layers.end() - chain);
    if (length < kLongestChain) return finish(pack_changes(tree_.layers, nullptr), tree_.layers);
    std::vector<StoredLayer> below(tree_.layers.begin(), chain), parts(chain, tree_.layers.end());
    parts.push_back(intermediate(nullptr));
    PackedLayer packed = finish(merge(parts, below, below), below);
    packed.collapsed = length;
    return packed;
  }

  PackedLayer workspace() {
    std::vector<StoredLayer> base, own, toolkits;
    for (const StoredLayer& layer : tree_.layers) {
      const LayerKind kind = layer.manifest.name.kind;
      (kind == LayerKind::Base ? base : kind == LayerKind::Toolkit ? toolkits : own).push_back(layer);
    }
    StackLookup hiding(toolkits, store_);
    own.push_back(intermediate(&hiding));
    LayerManifest manifest = merge(own, base, {});
    manifest.provenance.built_on = base.back().digest;
    PackedLayer packed = finish(std::move(manifest), base);
    packed.stack.insert(packed.stack.end(), toolkits.begin(), toolkits.end());
    packed.collapsed = static_cast<std::size_t>(std::count_if(own.begin(), own.end() - 1, is_snapshot));
    return packed;
  }

 private:
  /// What was written, as a layer on `lowers`.
  LayerManifest pack_changes(const std::vector<StoredLayer>& lowers, StackLookup* toolkits) {
    Changes changes(upper_of(tree_, scrub_of(request_)), platform(), toolkits);
    LayerManifest manifest = make_layer(*session_, changes, options(), notes_);
    if (tree_.release) tree_.release();
    for (const StoredLayer& lower : lowers) manifest.lowers.push_back(lower.digest);
    if (changes.hidden() > 0)
      notes_.warn(std::to_string(changes.hidden()) + " changes are to files of toolkits (" +
                  quote("/" + changes.first_hidden()) + "), which lie over a workspace and hide them");
    return manifest;
  }

  /// The same, to be merged: nobody needs it once this session is over, and gc takes it then.
  StoredLayer intermediate(StackLookup* toolkits) {
    return store_.add(pack_changes({}, toolkits), "", engine::Trust::BuiltHere, *session_);
  }

  /// `parts` in one, on `below`; of a snapshot, `lowers` is what it stands on.
  LayerManifest merge(const std::vector<StoredLayer>& parts, const std::vector<StoredLayer>& below,
                      const std::vector<StoredLayer>& lowers) {
    SourceFacts facts;
    facts.provenance.source = "sandbox";
    facts.platform = platform();
    std::string identity = "merge\n";
    for (std::size_t i = 0; i < parts.size(); ++i) {
      identity += parts[i].digest.str() + "\n";
      facts.provenance.inputs["part " + std::to_string(i + 1)] = parts[i].digest.str();
    }
    facts.identity = Digest::of(identity);
    StackLookup lookup(below, store_);
    const std::unique_ptr<Source> merged = make_merge_source(parts, store_, lookup, std::move(facts));
    LayerManifest manifest = make_layer(*session_, *merged, options(), notes_);
    for (const StoredLayer& lower : lowers) manifest.lowers.push_back(lower.digest);
    return manifest;
  }

  PackedLayer finish(const LayerManifest& manifest, std::vector<StoredLayer> below) {
    StoredLayer layer = store_.add(manifest, request_.tag, engine::Trust::BuiltHere, *session_, request_.labels);
    below.push_back(layer);
    return {.layer = std::move(layer),
            .stack = std::move(below),
            .collapsed = 0,
            .warnings = std::move(notes_.warnings),
            .hold = std::move(session_)};
  }

  ImportOptions options() const {
    ImportOptions options{.name = request_.name, .tag = ""};
    options.platform = platform();
    return options;
  }
  std::string platform() const { return tree_.layers.front().manifest.platform; }

  engine::LayerStore& store_;
  const WrittenTree& tree_;
  const PackRequest& request_;
  std::shared_ptr<engine::BlobSession> session_;
  WarningList notes_;
};

class Packer final : public engine::LayerPacker {
 public:
  explicit Packer(engine::LayerStore& store) : store_(store) {}

  PackedLayer pack_snapshot(const WrittenTree& tree, const PackRequest& request) override {
    return Packing(store_, tree, request).snapshot();
  }
  PackedLayer pack_workspace(const WrittenTree& tree, const PackRequest& request) override {
    return Packing(store_, tree, request).workspace();
  }

  std::vector<engine::FileChange> compare(const WrittenTree& tree) override {
    std::vector<engine::FileChange> changes;
    compare_trees(tree.upper, tree.lower, [&](const ChangedFile& file) {
      if (std::optional<engine::FileChange> change = measure(file)) changes.push_back(*std::move(change));
    });
    return changes;
  }

  void write(const WrittenTree& tree, engine::DiffForm form, int fd) override {
    if (form == engine::DiffForm::Patch) {
      compare_trees(tree.upper, tree.lower, [&](const ChangedFile& file) { write_patch(file, fd); });
      return;
    }
    const std::unique_ptr<Source> changes = upper_of(tree, Scrub());
    WarningList ignored;
    changes->examine({}, ignored);
    OciTarSink sink(fd);
    changes->emit(0, sink);
    sink.finish();
  }

 private:
  engine::LayerStore& store_;
};

}  // namespace

std::unique_ptr<engine::LayerPacker> make_layer_packer(engine::LayerStore& store) {
  return std::make_unique<Packer>(store);
}

}  // namespace dsec::layers
