#include "core/engine/local_engine.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;

// A backend at the seam to the kernel: it keeps its state in a file of the sandbox's directory, as a keeper does.
class FakeRunner final : public Runner {
 public:
  bool fail_start = false;
  void check(const SandboxSpec& spec) override {
    if (spec.limits.cpus) throw usage_error("cpus cannot be limited");
  }
  void start(RunnerRequest request) override {
    if (fail_start) throw failure("the kernel said no");
    write_file_atomic(request.directory / "fake-state", "running");
  }
  RunnerStatus status(const fs::path& directory) override {
    RunnerStatus status;
    if (!fs::exists(directory / "fake-state")) return status;
    const std::string text = read_file(directory / "fake-state");
    status.state = text == "running"   ? SandboxState::Running
                   : text == "stopped" ? SandboxState::Stopped
                                       : SandboxState::Orphaned;
    return status;
  }
  std::unique_ptr<ExecStream> exec(const fs::path&, const ExecSpec&) override { return nullptr; }
  std::unique_ptr<ExecStream> attach(const fs::path&, const std::string&) override { return nullptr; }
  std::vector<ExecInfo> commands(const fs::path&) override { return {}; }
  bool wait(const fs::path&, std::optional<std::chrono::milliseconds>) override { return true; }
  void stop(const fs::path& directory, std::chrono::milliseconds) override {
    write_file_atomic(directory / "fake-state", "stopped");
  }
  void reclaim(const fs::path& directory) override { fs::remove(directory / "fake-state"); }
  void logs(const fs::path&, const LogOptions&, const LogSink&) override {}
  SandboxStats stats(const fs::path&) override { return {}; }
  std::vector<Change> diff(const fs::path&, const OpenLayers&) override { return {}; }
  UniqueFd open_writable_layer(const fs::path&) override { return {}; }
  void copy_out(const fs::path&, const OpenLayers&, const std::string&, int) override {}
  void copy_in(const fs::path&, const OpenLayers&, const std::string&, int) override {}
  NetworkReport network(const fs::path&) override { return {}; }
  void set_network(const fs::path&, const NetworkPlan&) override {}
  std::string network_log(const fs::path&, std::uint64_t) override { return ""; }
};

class FakeStore final : public LayerStore {
 public:
  std::unique_ptr<BlobSession> begin_session() override { return nullptr; }
  StoredLayer add(const LayerManifest&, const std::string&, Trust, BlobSession&,
                  const std::map<std::string, std::string>&) override {
    throw failure("not in this test");
  }
  std::optional<StoredLayer> find(const LayerRef&) override { return std::nullopt; }
  StoredLayer get(const LayerRef& ref) override {
    if (ref.digest_prefix == Digest::of("gone").hex()) throw usage_error("there is no such layer");
    return {Digest::parse(*ref.digest_prefix),
            {LayerName::parse("base/x"), "linux/amd64", {}, {}, {}, {}},
            {},
            {},
            {},
            true};
  }
  std::vector<StoredLayer> list() override { return {}; }
  void tag(const Digest&, const LayerName&, const std::string&) override {}
  bool untag(const LayerName&, const std::string&) override { return false; }
  void confirm(std::span<const Digest>) override {}
  void register_lock(const fs::path&, std::span<const Digest>) override {}
  void mark_trusted(const Digest&) override {}
  fs::path blob_path(const Digest&) override { return {}; }
  bool has_blob(const Digest&) override { return true; }
};

class FakeMounter final : public LayerMounter {
 public:
  LayerStack open(std::span<const StoredLayer>, bool) override { return {}; }
  std::vector<StackConflict> conflicts(std::span<const StoredLayer>) override { return {}; }
  void mount_at(std::span<const StoredLayer>, const fs::path&) override {}
  void unmount_at(const fs::path&) override {}
  std::size_t unmount_unused(std::span<const Digest>) override { return 0; }
};

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  Home home = Home::open(scratch.path() / "home");
  FakeStore store;
  FakeMounter mounter;
  FakeRunner runner;
  Runners runners{{"container", runner}};
  std::unique_ptr<LocalEngine> engine = make_local_engine(home, store, mounter, runners);

  static SandboxSpec spec(std::string name = "") {
    SandboxSpec spec;
    spec.name = std::move(name);
    spec.layers = {Digest::of("base")};
    return spec;
  }
  std::size_t left() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(home.sandboxes()), fs::directory_iterator()) +
                                    std::distance(fs::directory_iterator(home.names()), fs::directory_iterator()));
  }
};

TEST_CASE_METHOD(Fixture, "a sandbox is found by id, by a prefix and by name", "[engine]") {
  const SandboxInfo made = engine->create(spec("web-1"));
  CHECK(is_sandbox_id(made.id));
  CHECK(made.id.starts_with(home.host_id()));
  CHECK(engine->inspect(made.id).id == made.id);
  CHECK(engine->inspect(made.id.substr(0, 12)).id == made.id);
  CHECK(engine->inspect("web-1").spec.name == "web-1");
  CHECK_THROWS_AS(engine->inspect("wbe-1"), Error);
  CHECK_THROWS_AS(engine->inspect("../" + made.id), Error);
}

TEST_CASE_METHOD(Fixture, "a name is taken once and free again after rm", "[engine]") {
  engine->create(spec("one"));
  CHECK_THROWS_AS(engine->create(spec("one")), Error);
  CHECK(engine->list({}).size() == 1);
  engine->remove("one", true);
  CHECK(left() == 0);
  engine->create(spec("one"));
}

TEST_CASE_METHOD(Fixture, "a creation that fails leaves nothing", "[engine]") {
  runner.fail_start = true;
  CHECK_THROWS_AS(engine->create(spec("one")), Error);
  CHECK(left() == 0);
  SandboxSpec missing = spec();
  missing.layers = {Digest::of("gone")};
  CHECK_THROWS_AS(engine->create(missing), Error);
  SandboxSpec limited = spec();
  limited.limits.cpus = 1;
  CHECK_THROWS_AS(engine->create(limited), Error);
  for (const char* wrong : {"-a", "a/b", "a b", "é"}) CHECK_THROWS_AS(engine->create(spec(wrong)), Error);
  CHECK(left() == 0);
}

TEST_CASE_METHOD(Fixture, "a running sandbox is removed only by force", "[engine]") {
  const SandboxInfo made = engine->create(spec());
  CHECK_THROWS_AS(engine->remove(made.id, false), Error);
  engine->stop(made.id, std::chrono::seconds(1));
  CHECK(engine->list({}).empty());
  CHECK(engine->list({.all = true}).size() == 1);
  engine->remove(made.id, false);
  CHECK(left() == 0);
}

TEST_CASE_METHOD(Fixture, "labels select sandboxes", "[engine]") {
  SandboxSpec labelled = spec();
  labelled.labels = {{"suite", "demo"}};
  engine->create(labelled);
  engine->create(spec());
  CHECK(engine->list({.labels = {{"suite", "demo"}}}).size() == 1);
  CHECK(engine->list({.labels = {{"suite", ""}}}).size() == 1);
  CHECK(engine->list({.labels = {{"suite", "other"}}}).empty());
}

TEST_CASE_METHOD(Fixture, "the sweep removes what was made for a command that its dead maker never began", "[engine]") {
  SandboxSpec waiting = spec("waiting");
  waiting.made_for_command = true;
  const SandboxInfo made = engine->create(waiting);
  CHECK(sweep_sandboxes(home, runners, false).empty());
  // The same record by a process that is gone.
  const fs::path directory = home.sandboxes() / made.id;
  Lease lease = *Lease::read(directory);
  lease.creator.start_ticks += 1;
  fs::remove(directory / "lease.json");
  lease.write(directory);
  CHECK(sweep_sandboxes(home, runners, false).size() == 1);
  CHECK(left() == 0);
}

TEST_CASE_METHOD(Fixture, "the sweep removes what died and spares what lives or was stopped", "[engine]") {
  const SandboxInfo orphan = engine->create(spec("orphan"));
  const SandboxInfo live = engine->create(spec("live"));
  const SandboxInfo stopped = engine->create(spec("stopped"));
  engine->stop("stopped", {});
  write_file_atomic(home.sandboxes() / orphan.id / "fake-state", "orphaned");
  // Of a maker that was killed before it wrote the lease: no process has started at tick 1 but those of the kernel.
  fs::create_directories(home.sandboxes() / (".tmp-" + std::to_string(::getpid()) + "-1-" + random_id(22)));

  CHECK(sweep_sandboxes(home, runners, true).size() == 2);
  CHECK(engine->list({.all = true}).size() == 3);
  CHECK(sweep_sandboxes(home, runners, false).size() == 2);
  CHECK(engine->list({.all = true}).size() == 2);
  CHECK(engine->inspect("live").id == live.id);
  CHECK(leased_layers(home) == std::vector<Digest>{Digest::of("base")});
  CHECK(sweep_sandboxes(home, runners, false).empty());
}

}  // namespace
}  // namespace dsec::engine
