#include "core/engine/local_engine.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/engine/device_holds.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;

// A backend at the seam to the kernel: it keeps its state in a file of the sandbox's directory, as a keeper does.
class FakeRunner final : public Runner {
 public:
  bool fail_start = false;
  void check(SandboxSpec& spec) override {
    if (spec.limits.cpus) throw usage_error("cpus cannot be limited");
  }
  RunnerStatus start(RunnerRequest request) override {
    if (fail_start) throw failure("the kernel said no");
    write_file_atomic(request.directory / "fake-state", "running");
    return status(request.directory);
  }
  RunnerStatus status(const fs::path& directory) override {
    RunnerStatus status;
    if (!fs::exists(directory / "fake-state")) return status;
    const std::string text = read_file(directory / "fake-state");
    status.state = text == "running"   ? SandboxState::Running
                   : text == "paused"  ? SandboxState::Paused
                   : text == "stopped" ? SandboxState::Stopped
                                       : SandboxState::Orphaned;
    return status;
  }
  std::unique_ptr<ExecStream> exec(const fs::path&, const ExecSpec&) override { return nullptr; }
  std::unique_ptr<OpenOperation> begin(const fs::path&, const OperationRequest&) override { return nullptr; }
  std::unique_ptr<ExecStream> attach(const fs::path&, const std::string&, const AttachFrom&) override {
    return nullptr;
  }
  std::vector<ExecInfo> commands(const fs::path&) override { return {}; }
  void signal(const fs::path&, const std::string&, int) override {}
  SessionInfo open_session(const fs::path&, const SessionSpec& spec) override { return {.id = "1", .name = spec.name}; }
  std::unique_ptr<ExecStream> run_in_session(const fs::path&, const std::string&, const SessionCommand&) override {
    return nullptr;
  }
  std::vector<SessionInfo> sessions(const fs::path&) override { return {}; }
  void close_session(const fs::path&, const std::string&) override {}
  UniqueFd connect(const fs::path&, std::uint16_t) override { return {}; }
  std::unique_ptr<FileWatch> watch(const fs::path&, const std::string&, bool) override { return nullptr; }
  bool wait(const fs::path&, std::optional<std::chrono::milliseconds>) override { return true; }
  void stop(const fs::path& directory, std::chrono::milliseconds) override {
    write_file_atomic(directory / "fake-state", "stopped");
  }
  void pause(const fs::path& directory) override { write_file_atomic(directory / "fake-state", "paused"); }
  void resume(const fs::path& directory) override { write_file_atomic(directory / "fake-state", "running"); }
  void update(const fs::path& directory, const SandboxSpec&, SandboxSpec& after) override {
    if (after.limits.pids == 1u) throw failure("one process is too few");
    write_file_atomic(directory / "fake-memory", std::to_string(after.limits.memory.value_or(0)));
  }
  std::unique_ptr<Stillness> hold_still(const fs::path&) override { return nullptr; }
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
            {LayerName::parse("base/x"), "linux/amd64", {}, {}, {}, {}, {}},
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
  LayerStack open(std::span<const StoredLayer>, bool) override {
    LayerStack stack;
    stack.lowers.push_back(open_file("/", O_RDONLY | O_DIRECTORY));
    return stack;
  }
  LayerStack files(std::span<const StoredLayer>, bool) override { return {}; }
  BootDisk disk(std::span<const StoredLayer>) override { return {}; }
  std::vector<StackConflict> conflicts(std::span<const StoredLayer>) override { return {}; }
  void mount_at(std::span<const StoredLayer>, const fs::path&) override {}
  void unmount_at(const fs::path&) override {}
  std::size_t unmount_unused(std::span<const Digest>) override { return 0; }
};

class FakePacker final : public LayerPacker {
 public:
  std::vector<PackRequest> packed;
  PackedLayer pack_snapshot(const WrittenTree& tree, const PackRequest& request) override {
    packed.push_back(request);
    StoredLayer layer = tree.layers.front();
    layer.digest = Digest::of("snapshot");
    PackedLayer made{.layer = layer, .stack = tree.layers, .collapsed = 0, .warnings = {}, .hold = nullptr};
    made.stack.push_back(layer);
    return made;
  }
  PackedLayer pack_workspace(const WrittenTree& tree, const PackRequest& request) override {
    return pack_snapshot(tree, request);
  }
  std::vector<FileChange> compare(const WrittenTree&) override { return {}; }
  void write(const WrittenTree&, DiffForm, int) override {}
};

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  Home home = Home::open(scratch.path() / "home");
  FakeStore store;
  FakeMounter mounter;
  FakePacker packer;
  FakeRunner runner;
  Runners runners{{"container", runner}};
  std::unique_ptr<LocalEngine> engine = make_local_engine(home, store, mounter, packer, runners);

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
  CHECK(engine->list({.all = true}).empty());
  engine->create(spec("one"));
  engine.reset();
  CHECK(left() == 2);
}

TEST_CASE_METHOD(Fixture, "under one key a sandbox is made once", "[engine]") {
  const MadeSandbox made = engine->create_once(spec("one"), "suite/1");
  CHECK(made.now);
  const MadeSandbox again = engine->create_once(spec("one"), "suite/1");
  CHECK_FALSE(again.now);
  CHECK(again.info.id == made.info.id);
  try {
    engine->create_once(spec("two"), "suite/1");
    FAIL("another sandbox was taken for the same");
  } catch (const Error& error) {
    CHECK(error.message() == R"(operation 'suite/1' was another request: name was "one", is "two")");
  }
  CHECK(engine->create_once(spec("two"), ".").now);
  CHECK_THROWS_AS(engine->create_once(spec(), "no blanks"), Error);
  // Nothing was done in it: whoever comes now begins anew.
  engine->remove("one", true);
  CHECK(engine->create_once(spec("one"), "suite/1").now);
  runner.fail_start = true;
  CHECK_THROWS_AS(engine->create_once(spec(), "third"), Error);
  runner.fail_start = false;
  CHECK(engine->create_once(spec(), "third").now);
  CHECK(engine->list({}).size() == 3);
  for (const SandboxInfo& left : engine->list({})) {
    engine->remove(left.id, true);
    engine->remove_trajectory(left.id);
  }
  sweep_sandboxes(home, runners, false);
  CHECK(std::distance(fs::directory_iterator(home.root() / "keys"), fs::directory_iterator()) == 1);
}

TEST_CASE_METHOD(Fixture, "a fork is told of again when it is gone", "[engine]") {
  engine->create(spec("dev"));
  const ForkRequest request{.count = 2, .name = "", .labels = {}, .operation = {.op_id = "forks"}};
  const std::vector<SandboxInfo> made = engine->fork("dev", request);
  engine->remove(made[0].id, true);
  engine->remove_trajectory(made[0].id);
  engine->remove(made[1].id, true);
  engine->remove("dev", true);
  const std::vector<SandboxInfo> again = engine->fork("dev", request);
  REQUIRE(again.size() == 2);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    CHECK(again[i].id == made[i].id);
    CHECK(again[i].state == SandboxState::Stopped);
  }
  CHECK(again[1].spec.name == "dev-2");
  CHECK_THROWS_AS(engine->fork("dev", {.count = 2, .name = "", .labels = {}, .operation = {.op_id = "more"}}), Error);
}

TEST_CASE_METHOD(Fixture, "files of removed sandboxes are gone with the engine that removed them", "[engine]") {
  for (int i = 0; i < 100; ++i) {
    const SandboxInfo made = engine->create(spec());
    make_directories(home.sandboxes() / made.id / "upper/a/b");
    engine->remove(made.id, true);
    CHECK_THROWS_AS(engine->inspect(made.id), Error);
  }
  engine.reset();
  CHECK(left() == 0);
}

TEST_CASE_METHOD(Fixture, "the sweep finds what a dead process was about to remove", "[engine]") {
  const SandboxInfo made = engine->create(spec("one"));
  const pid_t child = ::fork();
  if (child == 0) {
    SandboxRecords(home).take_away(made.id, "one");
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  CHECK(engine->list({.all = true}).empty());
  const auto swept = sweep_sandboxes(home, runners, false);
  REQUIRE(swept.size() == 1);
  CHECK(swept[0].id == made.id);
  CHECK(left() == 0);
}

TEST_CASE_METHOD(Fixture, "a session's name is no number, and its commands have no NUL", "[engine][sessions]") {
  engine->create(spec("one"));
  CHECK(engine->open_session("one", {.name = "build-1"}).name == "build-1");
  for (const char* wrong : {"7", "-a", "a b"})
    CHECK_THROWS_WITH(engine->open_session("one", {.name = wrong}), Catch::Contains("no valid name for a session"));
  CHECK_THROWS_WITH(engine->run_in_session("one", "1", {.text = std::string("a\0b", 3)}), Catch::Contains("NUL"));
  CHECK_THROWS_WITH(engine->connect("one", 0), Catch::Contains("port 0"));
  CHECK_THROWS_WITH(engine->watch("one", "relative", false), Catch::Contains("is not absolute"));
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
  engine.reset();
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

TEST_CASE_METHOD(Fixture, "forks take over the settings, get names that are free and tell where they come from",
                 "[engine][fork]") {
  SandboxSpec settings = spec("dev");
  settings.labels = {{"suite", "demo"}};
  settings.hostname = "given";
  settings.remove_at_end = true;
  const SandboxInfo parent = engine->create(settings);
  engine->create(spec("dev-2"));
  const std::vector<SandboxInfo> forks = engine->fork("dev", {.count = 2, .name = "", .labels = {{"try", "1"}}});
  REQUIRE(forks.size() == 2);
  CHECK(forks[0].spec.name == "dev-1");
  CHECK(forks[1].spec.name == "dev-3");
  CHECK(packer.packed.size() == 1);
  for (const SandboxInfo& fork : forks) {
    CHECK(fork.spec.layers == std::vector<Digest>{Digest::of("base"), Digest::of("snapshot")});
    CHECK(fork.spec.labels ==
          std::map<std::string, std::string>{{"suite", "demo"}, {"try", "1"}, {kForkedFromLabel, parent.id}});
    CHECK(fork.spec.hostname == "given");
    CHECK_FALSE(fork.spec.remove_at_end);
    CHECK(fork.spec.machine_id.size() == 32);
  }
  CHECK(forks[0].spec.machine_id != forks[1].spec.machine_id);
}

TEST_CASE_METHOD(Fixture, "a fork that fails leaves none behind", "[engine][fork]") {
  engine->create(spec("dev"));
  const std::size_t before = left();
  runner.fail_start = true;
  CHECK_THROWS_AS(engine->fork("dev", {.count = 3, .name = "", .labels = {}}), Error);
  CHECK(left() == before);
  CHECK_THROWS_AS(engine->fork("dev", {.count = 0, .name = "", .labels = {}}), Error);
}

TEST_CASE_METHOD(Fixture, "an update stands in the lease, or nothing has changed", "[engine][update]") {
  engine->create(spec("dev"));
  const auto of_dev = [&] { return engine->inspect("dev").spec; };
  UpdateRequest request{.memory = 1 << 20};
  request.labels = {{"a", "1"}, {"b", "2"}};
  CHECK(engine->update("dev", request).spec.limits.memory == 1u << 20);
  CHECK(of_dev().labels == std::map<std::string, std::string>{{"a", "1"}, {"b", "2"}});
  const SandboxSpec before = of_dev();
  UpdateRequest refused{.pids = 1};
  refused.labels = {{"a", std::nullopt}};
  CHECK_THROWS_AS(engine->update("dev", refused), Error);
  CHECK(of_dev() == before);
  CHECK_THROWS_AS(engine->update("dev", {}), Error);
  CHECK_THROWS_AS(engine->update("dev", {.lifetime = std::chrono::milliseconds(1)}), Error);
  engine->update("dev", {.memory = 0});
  CHECK_FALSE(of_dev().limits.memory);
  engine->stop("dev", {});
  CHECK_THROWS_AS(engine->update("dev", {.memory = 5}), Error);
  UpdateRequest labels;
  labels.labels = {{"a", std::nullopt}};
  CHECK(engine->update("dev", labels).spec.labels == std::map<std::string, std::string>{{"b", "2"}});
}

TEST_CASE_METHOD(Fixture, "devices are held as long as somebody has the locks, and chosen anew", "[engine][devices]") {
  SandboxSpec first = spec();
  first.gpus = GpuWish{.devices = {"/dev/null", "/dev/zero"}};
  std::vector<FileLock> held = hold_devices(home, first);
  REQUIRE(first.devices.size() == 1);
  SandboxSpec second = first;  // as of a fork
  std::vector<FileLock> other = hold_devices(home, second);
  REQUIRE(second.devices.size() == 1);
  CHECK(first.devices != second.devices);
  SandboxSpec third = spec();
  third.gpus = first.gpus;
  CHECK_THROWS_AS(hold_devices(home, third), Error);
  third.gpus->exclusive = false;
  CHECK_THROWS_AS(hold_devices(home, third), Error);
  held.clear();
  CHECK(hold_devices(home, third).size() == 1);
  CHECK(third.devices == first.devices);
  third.gpus->count = 3;
  CHECK_THROWS_AS(hold_devices(home, third), Error);
  SandboxSpec named = spec();
  named.devices = second.devices;
  CHECK_THROWS_AS(hold_devices(home, named), Error);
  other.clear();
  // Those who do not ask for it alone share it, also under another name.
  named.devices.push_back({named.devices[0].source, "/dev/again"});
  CHECK(hold_devices(home, named).size() == 2);
  named.devices = {{"/etc/passwd", "/dev/x"}};
  CHECK_THROWS_AS(hold_devices(home, named), Error);
}

TEST_CASE_METHOD(Fixture, "operations on files resume what is paused, branching does not", "[engine][pause]") {
  engine->create(spec("dev"));
  const UniqueFd null = open_file("/dev/null", O_RDWR);
  const auto paused = [&] { return engine->inspect("dev").state == SandboxState::Paused; };
  engine->pause("dev");
  CHECK(paused());
  engine->snapshot("dev", {.name = LayerName::parse("snapshot/x"), .tag = "1", .labels = {}});
  engine->fork("dev", {});
  engine->stats("dev");
  CHECK(paused());
  CHECK_THROWS_AS(engine->snapshot("dev", {.name = LayerName::parse("base/x"), .tag = "1", .labels = {}}), Error);
  engine->diff("dev");
  CHECK_FALSE(paused());
  for (const auto& operation : std::vector<std::function<void()>>{
           [&] { engine->diff_stat("dev"); },
           [&] { engine->diff_content("dev", DiffForm::Patch, -1); },
           [&] { engine->copy_in("dev", "/", null.get()); },
           [&] { engine->copy_out("dev", "/", null.get()); },
           [&] { engine->connect("dev", 80); },
       }) {
    engine->pause("dev");
    operation();
    CHECK_FALSE(paused());
  }
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
