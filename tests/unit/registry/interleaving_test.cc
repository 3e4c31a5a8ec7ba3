// Two parties in a chosen order: what the races only meet by luck.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/gc/gc.h"
#include "registry/layout/layout.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

/// Runs an action the first time that some work tells of progress.
class AtProgress : public Progress {
 public:
  explicit AtProgress(std::function<void()> action) : action_(std::move(action)) {}
  void begin(std::string_view) override { once(); }
  bool done() const { return done_; }

 protected:
  void once() {
    if (std::exchange(done_, true)) return;
    action_();
  }

 private:
  std::function<void()> action_;
  bool done_ = false;
};

class AtAdvance : public AtProgress {
 public:
  using AtProgress::AtProgress;
  void begin(std::string_view) override {}
  void advance(std::string_view, std::uint64_t, std::uint64_t) override { once(); }
};

void make_old(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (!entry.is_directory())
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(2));
}

TEST_CASE("confirming waits for a gc that is deciding, and sees what it decided", "[registry][interleaving]") {
  Scratch scratch;
  const auto layer = put_layer(scratch.store, "base/x", "", "meta", "data");
  Database gc(scratch.home.store() / "index.db");
  Transaction deciding(gc);
  gc.prepare("DELETE FROM layers WHERE digest = ?").bind(layer.digest.hex()).run();
  std::atomic<bool> answered = false, refused = false;
  std::thread engine([&] {
    try {
      scratch.store.confirm(std::vector<Digest>{layer.digest});
    } catch (const Error&) {
      refused = true;
    }
    answered = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK_FALSE(answered);
  deciding.commit();
  engine.join();
  CHECK(refused);
}

TEST_CASE("a blob that is needed again after gc has decided stays", "[registry][interleaving]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "", "meta", "data");
  put_layer(scratch.store, "base/y", "", "meta of y", "data of y");
  std::unique_ptr<engine::BlobSession> session;
  GcPorts ports;
  // Called between the decision and the removal of blobs.
  ports.unmount_unused = [&](std::span<const Digest>) {
    put_layer(scratch.store, "base/z", "1", "meta of z", "data");
    session = scratch.store.begin_session();
    CHECK(session->hold(Digest::of("meta of y")));
    return std::size_t{0};
  };
  collect_garbage(scratch.store, ports, false);
  CHECK(scratch.store.has_blob(Digest::of("data")));
  CHECK(scratch.store.has_blob(Digest::of("meta of y")));
  CHECK_FALSE(scratch.store.has_blob(Digest::of("meta")));
  CHECK_FALSE(scratch.store.has_blob(Digest::of("data of y")));
  CHECK(scratch.store.list().size() == 1);
}

TEST_CASE("repair in the middle of a publishing removes nothing of it", "[registry][interleaving]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", random_bytes(100'000, 1));
  const auto address = RegistryAddress::parse(scratch.registry_url());
  bool whole = true;
  AtAdvance between([&] {
    make_old(scratch.registry_path());
    Progress quiet;
    CheckOptions repair;
    repair.repair = true;
    whole = check_registry(address, repair, quiet).problems.empty();
  });
  const std::vector<LayerRef> refs = {named("base/x:1")};
  publish(scratch.store, refs, address, {}, between);
  CHECK(between.done());
  CHECK(whole);
  Progress quiet;
  CHECK(check_registry(address, {}, quiet).problems.empty());
}

TEST_CASE("a publishing in the middle of a repair keeps its blobs", "[registry][interleaving]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", "data");
  const auto layer = put_layer(scratch.store, "base/y", "1", "meta of y", "data of y");
  const auto address = RegistryAddress::parse(scratch.registry_url());
  publish_refs(scratch.store, {"base/x:1", "base/y:1"}, address);
  // As a publisher leaves it that was stopped before the manifest of base/y.
  fs::remove(scratch.registry_path() / manifest_name(layer.digest));
  fs::remove(scratch.registry_path() / "tags/base/y/1");
  make_old(scratch.registry_path());
  AtProgress between([&] { publish_refs(scratch.store, {"base/y:1"}, address); });
  CheckOptions repair;
  repair.repair = true;
  CHECK(check_registry(address, repair, between).problems.empty());
  CHECK(between.done());
  Progress quiet;
  CHECK(check_registry(address, {}, quiet).problems.empty());
}

TEST_CASE("a layer's tag appears after its manifest, and that after its blobs", "[registry][interleaving]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", random_bytes(9'000'000, 1), random_bytes(9'000'000, 2));
  const auto address = RegistryAddress::parse(scratch.registry_url());
  struct Watch : Progress {
    fs::path root;
    int seen = 0;
    void advance(std::string_view, std::uint64_t done, std::uint64_t total) override {
      ++seen;
      // The manifest comes after the last advance.
      if (done < total) CHECK_FALSE(fs::exists(root / "manifests"));
      CHECK_FALSE(fs::exists(root / "tags"));
    }
  } watch;
  watch.root = scratch.registry_path();
  const std::vector<LayerRef> refs = {named("base/x:1")};
  publish(scratch.store, refs, address, {}, watch);
  CHECK(watch.seen > 4);
  CHECK(fs::exists(scratch.registry_path() / "tags/base/x/1"));
}

}  // namespace
}  // namespace dsec::registry::test
