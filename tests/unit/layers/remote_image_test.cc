#include <catch2/catch.hpp>
#include <condition_variable>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "layers/oci/image_source.h"
#include "tests/unit/layers/fake_registry.h"
#include "tests/unit/layers/recorded_tree.h"
#include "tests/unit/layers/tar_builder.h"

using namespace dsec;
using namespace dsec::layers;
namespace fs = std::filesystem;

namespace {

using Catch::Matchers::Contains;

std::string listing_of(FakeRegistry& registry) {
  ImageSource source("//h.example/x:1", opener(registry), registry.directory.path());
  Progress quiet;
  source.examine({.platform = "linux/amd64"}, quiet);
  RecordedTree tree;
  source.emit(0, tree);
  return tree.listing();
}

std::string told(FakeRegistry& registry) {
  try {
    listing_of(registry);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

/// Tells when something of a layer has been read.
class Watched : public Progress {
 public:
  explicit Watched(std::string layer) : layer_(std::move(layer)) {}
  void advance(std::string_view step, std::uint64_t, std::uint64_t) override {
    const std::lock_guard guard(mutex_);
    read_ = read_ || step.starts_with(layer_);
    moved_.notify_all();
  }
  bool wait(std::chrono::seconds most) {
    std::unique_lock lock(mutex_);
    return moved_.wait_for(lock, most, [&] { return read_; });
  }

 private:
  const std::string layer_;
  std::mutex mutex_;
  std::condition_variable moved_;
  bool read_ = false;
};

ImageBuilder::Layer layer(const std::string& name) { return {TarBuilder().file(name, name).str(), {}}; }

std::vector<std::string> files_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("an image of a registry has the tree that its layout has", "[layers][oci][remote]") {
  FakeRegistry registry;
  const std::vector<ImageBuilder::Layer> layers = {layer("a"), layer("b"), layer("a"), layer("c"), layer("d")};
  registry.root = registry.builder.image(layers);
  registry.builder.index({registry.root});
  ImageSource layout(ImageSource::Form::Layout, registry.builder.root().native(), registry.directory.path());
  Progress quiet;
  const SourceFacts facts = layout.examine({.platform = "linux/amd64"}, quiet);
  RecordedTree tree;
  layout.emit(0, tree);
  CHECK(listing_of(registry) == tree.listing());
  CHECK(registry.most <= 3);
  ImageSource source("//h.example/x:1", opener(registry), registry.directory.path());
  const SourceFacts remote = source.examine({.platform = "linux/amd64"}, quiet);
  CHECK(remote.identity == facts.identity);
  CHECK(remote.provenance == facts.provenance);
  CHECK(files_in(registry.directory.path()) == std::vector<std::string>{"layout"});
}

TEST_CASE("a layer is read while the one behind it arrives", "[layers][oci][remote]") {
  FakeRegistry registry;
  const auto first = layer("a"), second = layer("b");
  registry.root = registry.builder.image({first, second});
  Watched watch("layer 1 of 2");
  registry.before = [&](const Digest& digest, int) {
    if (digest == Digest::of(second.blob)) CHECK(watch.wait(std::chrono::seconds(60)));
  };
  ImageSource source("//h.example/x:1", opener(registry), registry.directory.path());
  source.examine({.platform = "linux/amd64"}, watch);
  CHECK(watch.wait(std::chrono::seconds(0)));
}

TEST_CASE("a layer is read while the rest of it arrives", "[layers][oci][remote]") {
  FakeRegistry registry;
  const ImageBuilder::Layer only{TarBuilder().file("a", "a").file("b", std::string(1 << 20, 'b')).str(), {}};
  registry.root = registry.builder.image({only});
  Watched watch("layer 1 of 1");
  registry.before = [&](const Digest& digest, int half) {
    if (digest == Digest::of(only.blob) && half == 1) CHECK(watch.wait(std::chrono::seconds(60)));
  };
  ImageSource source("//h.example/x:1", opener(registry), registry.directory.path());
  source.examine({.platform = "linux/amd64"}, watch);
  CHECK(watch.wait(std::chrono::seconds(0)));
}

TEST_CASE("what fails while a layer arrives ends the import", "[layers][oci][remote]") {
  FakeRegistry registry;
  const auto first = layer("a"), second = layer("b");
  registry.root = registry.builder.image({first, second});
  registry.before = [&](const Digest& digest, int half) {
    if (digest == Digest::of(second.blob) && half == 1) throw failure("the registry went away");
  };
  CHECK_THAT(told(registry), Contains("layer 2 of 2") && Contains("the registry went away"));
  CHECK(files_in(registry.directory.path()) == std::vector<std::string>{"layout"});
}

TEST_CASE("a layer that comes wrong at first is read once more from where it is right", "[layers][oci][remote]") {
  FakeRegistry registry;
  const auto first = layer("a"), second = layer("b");
  registry.root = registry.builder.image({first, second});
  const std::string right = listing_of(registry);
  Watched watch("layer 2 of 2");
  std::string wrong;
  SECTION("another archive") { wrong = TarBuilder().file("evil", "x").file(".wh.a", "").str(); }
  SECTION("one that is damaged") {
    wrong = second.blob;
    wrong[100] ^= 1;
  }
  SECTION("none at all, and shorter") { wrong = "no archive"; }
  registry.at_first = [&](const Digest& digest) { return digest == Digest::of(second.blob) ? wrong : std::string(); };
  bool taken_back = false;
  registry.before = [&](const Digest& digest, int) {
    // So that what is wrong has been read when it is taken back, where it can be.
    if (digest == Digest::of(second.blob) && !std::exchange(taken_back, true)) watch.wait(std::chrono::seconds(1));
  };
  ImageSource source("//h.example/x:1", opener(registry), registry.directory.path());
  source.examine({.platform = "linux/amd64"}, watch);
  RecordedTree tree;
  source.emit(0, tree);
  CHECK(tree.listing() == right);
  CHECK(taken_back);
}

TEST_CASE("downloads that nobody waits for any more are cancelled", "[layers][oci][remote]") {
  FakeRegistry registry;
  ImageBuilder::Layer first = layer("a"), second = layer("b");
  first.unpacked = "something else";
  registry.root = registry.builder.image({first, second});
  registry.before = [&](const Digest& digest, int) {
    if (digest != Digest::of(second.blob)) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!registry.cancelled && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    throw failure("cancelled");
  };
  CHECK_THAT(told(registry), Contains("diff-id-mismatch"));
  CHECK(registry.cancelled);
}

TEST_CASE("layers that do not fit are not begun", "[layers][oci][remote]") {
  FakeRegistry registry;
  const auto only = layer("a");
  Json config = registry.builder.descriptor(registry.builder.config({only}).dump());
  Json huge = registry.builder.descriptor(only.blob);
  huge["size"] = 1ull << 60;
  registry.root = registry.builder.descriptor(
      Json{{"schemaVersion", 2}, {"config", config}, {"layers", Json::array({huge})}}.dump());
  CHECK_THAT(told(registry), Contains("its layers need"));
  CHECK(registry.most == 0);
}

TEST_CASE("a layer of dsec is no image", "[layers][oci][remote]") {
  FakeRegistry registry;
  Json config = registry.builder.descriptor("{}");
  config["mediaType"] = "application/vnd.dsec.layer.config.v1+json";
  registry.root =
      registry.builder.descriptor(Json{{"schemaVersion", 2}, {"config", config}, {"layers", Json::array()}}.dump());
  CHECK_THAT(told(registry), Contains("no-image") && Contains("a layer that dsec published"));
}

TEST_CASE("without a way to a registry its images are refused", "[layers][oci][remote]") {
  ImageSource source("//h.example/x:1", {}, fs::temp_directory_path());
  Progress quiet;
  CHECK_THROWS_AS(source.examine({.platform = "linux/amd64"}, quiet), Error);
}
