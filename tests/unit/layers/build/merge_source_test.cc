#include "layers/build/merge_source.h"

#include <catch2/catch.hpp>

#include "core/base/files.h"
#include "layers/import.h"
#include "registry/store/local_store.h"
#include "tests/unit/layers/recorded_tree.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using engine::StoredLayer;

// A source that sends what it is given; a File's content is its path.
class ListSource final : public Source {
 public:
  explicit ListSource(std::vector<Entry> entries) : entries_(std::move(entries)) {}
  SourceFacts examine(const SourceOptions&, Progress&) override { return {}; }
  void emit(std::size_t, TreeSink& sink) override {
    for (Entry entry : entries_) {
      if (entry.type == EntryType::File) entry.size = entry.path.size();
      sink.entry(entry);
      if (entry.type == EntryType::File) sink.data(entry.path);
    }
  }

 private:
  std::vector<Entry> entries_;
};

Entry file(const std::string& path) { return {.path = path, .mode = 0644}; }
Entry folder(const std::string& path, std::uint32_t mode = 0755) {
  return {.path = path, .type = EntryType::Directory, .mode = mode};
}
Entry opaque(const std::string& path) {
  Entry entry = folder(path);
  entry.xattrs["trusted.overlay.opaque"] = "y";
  return entry;
}
Entry whiteout(const std::string& path) { return {.path = path, .type = EntryType::CharDevice}; }

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  engine::Home home = engine::Home::open(scratch.path() / "home");
  std::unique_ptr<engine::LayerStore> store = registry::make_layer_store(home);
  Progress progress;

  StoredLayer layer(std::vector<Entry> entries) {
    ListSource source(std::move(entries));
    return import_layer(*store, source, {.name = LayerName::parse("base/x"), .tag = ""}, progress);
  }
  RecordedTree merged(const std::vector<Entry>& base, const std::vector<std::vector<Entry>>& steps) {
    std::vector<StoredLayer> layers;
    for (const auto& step : steps) layers.push_back(layer(step));
    const StoredLayer below = layer(base);
    StackLookup lookup(std::span(&below, 1), *store);
    const auto source = make_merge_source(layers, *store, lookup, {});
    source->examine({}, progress);
    RecordedTree tree;
    source->emit(0, tree);
    return tree;
  }
};

TEST_CASE_METHOD(Fixture, "what an earlier step made and a later one deleted leaves no trace", "[layers][build]") {
  const RecordedTree tree =
      merged({folder("")}, {{folder("d"), file("d/a"), file("d/b")}, {folder("d"), whiteout("d/a")}});
  CHECK(tree.items().contains("d/b"));
  CHECK_FALSE(tree.items().contains("d/a"));
}

TEST_CASE_METHOD(Fixture, "what the base has stays deleted", "[layers][build]") {
  const RecordedTree tree = merged({folder("d"), file("d/a"), folder("e"), file("e/x")},
                                   {{folder("d"), whiteout("d/a"), whiteout("e")}, {folder("e"), file("e/y")}});
  REQUIRE(tree.items().contains("d/a"));
  CHECK(is_whiteout(tree.items().at("d/a").entry));
  CHECK(is_opaque(tree.items().at("e").entry));
  CHECK(tree.items().at("e/y").content == "e/y");
}

TEST_CASE_METHOD(Fixture, "an opaque folder drops earlier steps' files and is opaque only over something",
                 "[layers][build]") {
  const RecordedTree tree = merged({folder("in-base"), file("in-base/f")},
                                   {{folder("new"), file("new/a")}, {opaque("new"), file("new/b"), opaque("in-base")}});
  CHECK_FALSE(tree.items().contains("new/a"));
  CHECK_FALSE(is_opaque(tree.items().at("new").entry));
  CHECK(is_opaque(tree.items().at("in-base").entry));
}

TEST_CASE_METHOD(Fixture, "a folder that a step only passes through keeps its attributes", "[layers][build]") {
  const RecordedTree tree = merged({folder("")}, {{folder("d", 0700)}, {file("d/f")}, {file("only/passed")}});
  CHECK(tree.items().at("d").entry.mode == 0700);
}

TEST_CASE_METHOD(Fixture, "hard links within a step stay links", "[layers][build]") {
  Entry link = file("z");
  link.type = EntryType::HardLink;
  link.target = "a";
  const RecordedTree tree = merged({folder("")}, {{file("a"), link}, {file("other")}});
  CHECK(tree.items().at("z").entry.type == EntryType::HardLink);
  CHECK(tree.items().at("z").entry.target == "a");
}

TEST_CASE_METHOD(Fixture, "a folder replaced by a file takes its content along", "[layers][build]") {
  const RecordedTree tree = merged({folder("")}, {{folder("d"), file("d/f"), file("d0")}, {file("d")}});
  CHECK(tree.items().at("d").content == "d");
  CHECK_FALSE(tree.items().contains("d/f"));
  CHECK(tree.items().contains("d0"));
}

}  // namespace
}  // namespace dsec::layers
