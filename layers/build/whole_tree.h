#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/layer_store.h"
#include "layers/dockerfile/copy_origin.h"
#include "layers/source.h"

namespace dsec::layers {

/// Gives a tree the directories above its entries as the layer below has them: within one layer the images are stacked
/// as they are.
class WholeTree final : public Source {
 public:
  WholeTree(std::unique_ptr<Source> changes, engine::LayerStore& store, const std::vector<engine::StoredLayer>& base)
      : changes_(std::move(changes)), store_(store), base_(base) {
    for (const engine::StoredLayer& layer : base)
      implicit_.insert(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end());
  }

  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    return changes_->examine(options, progress);
  }

  void emit(std::size_t image, TreeSink& sink) override {
    dockerfile::StackOrigin below(store_, base_);
    Parents parents(sink, below, *this);
    parents.root();
    changes_->emit(image, parents);
  }

  /// Directories that have attributes of their own in the image.
  const std::set<std::string>& own() const noexcept { return own_; }

 private:
  class Parents final : public TreeSink {
   public:
    Parents(TreeSink& under, dockerfile::StackOrigin& below, WholeTree& tree)
        : under_(under), below_(below), tree_(tree) {}

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
    dockerfile::StackOrigin& below_;
    WholeTree& tree_;
    std::set<std::string> known_;
    std::optional<Entry> root_;
  };

  std::unique_ptr<Source> changes_;
  engine::LayerStore& store_;
  const std::vector<engine::StoredLayer>& base_;
  std::set<std::string> implicit_, own_;
};

}  // namespace dsec::layers
