// kill -9 at random moments, and disks that take no more: what is left is whole, and gc removes the rest.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/gc/gc.h"
#include "registry/store/verify.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

/// Runs `action` in a child and kills it after a random time of at most `longest`.
void kill_within(std::chrono::microseconds longest, std::minstd_rand& random, const std::function<void()>& action) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      action();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(longest.count())));
  ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
}

void check_store(const engine::Home& home) {
  LocalStore store(home);
  Progress quiet;
  for (const StoreProblem& problem : verify_store(store, {}, quiet).problems) UNSCOPED_INFO(problem.what);
  CHECK(verify_store(store, {}, quiet).problems.empty());
  CHECK(collect_garbage(store, {}, false).warnings.empty());
  const GcResult second = collect_garbage(store, {}, false);
  for (const GcItem& item : second.removed) UNSCOPED_INFO(item.name);
  CHECK(second.removed.empty());
  CHECK(temp_files_below(home.root()).empty());
}

/// As if everything below had been written long ago, so that repair need not wait for it.
void age(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (!entry.is_directory())
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(2));
}

TEST_CASE("a store survives kill -9 of importers and of gc at any moment", "[registry][crash]") {
  Scratch scratch;
  std::minstd_rand random(7);
  for (int round = 0; round < rounds(12); ++round) {
    kill_within(std::chrono::milliseconds(60), random, [&] {
      LocalStore store(scratch.home);
      for (int i = 0;; ++i)
        put_layer(store, "base/x", i % 2 ? "" : "t" + std::to_string(i % 4), "meta " + std::to_string(i),
                  random_bytes(40'000, static_cast<unsigned>(i % 5)));
    });
    kill_within(std::chrono::milliseconds(30), random, [&] {
      LocalStore store(scratch.home);
      for (;;) collect_garbage(store, {}, false);
    });
    check_store(scratch.home);
  }
}

TEST_CASE("a registry survives kill -9 of publishers at any moment", "[registry][crash]") {
  Scratch scratch;
  std::vector<std::string> refs;
  for (int i = 0; i < 5; ++i) {
    refs.push_back("base/l" + std::to_string(i) + ":1");
    put_layer(scratch.store, "base/l" + std::to_string(i), "1", "meta",
              random_bytes(200'000, static_cast<unsigned>(i)));
  }
  std::minstd_rand random(11);
  Progress quiet;
  for (int round = 0; round < rounds(8); ++round) {
    const std::string name = "r" + std::to_string(round % 3);
    const auto address = RegistryAddress::parse(scratch.registry_url(name));
    if (round % 3 == 0 && fs::exists(scratch.registry_path(name))) remove_tree(scratch.registry_path(name));
    kill_within(std::chrono::milliseconds(80), random, [&] {
      LocalStore store(scratch.home);
      publish_refs(store, refs, address);
    });
    if (fs::exists(scratch.registry_path(name) / "dsec-registry.json")) {
      for (const RegistryProblem& problem : check_registry(address, {}, quiet).problems) {
        INFO(problem.path + " " + problem.what);
        using Kind = RegistryProblem::Kind;
        CHECK(
            (problem.kind == Kind::Leftover || problem.kind == Kind::Unreferenced || problem.kind == Kind::Catalogue));
      }
    }
    publish_refs(scratch.store, refs, address);
    age(scratch.registry_path(name));
    CheckOptions repair;
    repair.repair = true;
    check_registry(address, repair, quiet);
    CHECK(check_registry(address, {}, quiet).problems.empty());
    CHECK(temp_files_below(scratch.registry_path(name)).empty());
  }
  check_store(scratch.home);
}

TEST_CASE("a store survives kill -9 of pullers at any moment, and the next pull goes on", "[registry][crash]") {
  Scratch from, to;
  const auto layer = put_layer(from.store, "base/x", "1", random_bytes(200'000, 1), random_bytes(700'000, 2));
  const auto address = RegistryAddress::parse(from.registry_url());
  publish_refs(from.store, {"base/x:1"}, address);
  std::minstd_rand random(13);
  for (int round = 0; round < rounds(10); ++round) {
    kill_within(std::chrono::milliseconds(40), random, [&] {
      LocalStore store(to.home);
      pull_ref(store, "base/x:1", address);
    });
    if (round % 2 == 0) check_store(to.home);
    CHECK(pull_ref(to.store, "base/x:1", address).layer.digest == layer.digest);
    to.store.remove(named("base/x:1"));
    check_store(to.home);
    CHECK(files_below(to.store.blob_root()).empty());
  }
}

/// Files may not grow beyond `bytes` in the child that runs `action`; write() then fails as on a full disk, but with
/// EFBIG. Returns the message of the Error that it threw.
std::string without_space(rlim_t bytes, const std::function<void()>& action) {
  auto [reading, writing] = std::pair<UniqueFd, UniqueFd>();
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  reading.reset(ends[0]);
  writing.reset(ends[1]);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string message = "accepted";
    try {
      action();
    } catch (const Error& error) {
      message = error.message();
    } catch (...) {
      message = "another exception";
    }
    write_all(writing.get(), message);
    ::_exit(0);
  }
  writing.reset();
  std::string message = read_all(reading.get());
  ::waitpid(child, nullptr, 0);
  return message;
}

TEST_CASE("a disk that takes no more leaves nothing half done", "[registry][crash]") {
  Scratch from, to;
  put_layer(from.store, "base/x", "1", "meta", random_bytes(3 << 20, 1));
  const auto address = RegistryAddress::parse(from.registry_url());
  constexpr rlim_t kLimit = 1 << 20;

  CHECK_THAT(without_space(kLimit, [&] { publish_refs(from.store, {"base/x:1"}, address); }),
             Catch::Contains("cannot publish base/x:1") && Catch::Contains("EFBIG"));
  CHECK(temp_files_below(from.registry_path()).empty());
  CHECK(files_below(from.registry_path() / "leases").empty());
  CHECK_FALSE(fs::exists(from.registry_path() / "tags"));
  publish_refs(from.store, {"base/x:1"}, address);

  CHECK_THAT(without_space(kLimit, [&] { pull_ref(to.store, "base/x:1", address); }),
             Catch::Contains("cannot pull base/x:1") && Catch::Contains("EFBIG"));
  CHECK(to.store.list().empty());
  CHECK(temp_files_below(to.home.root()).empty());
  CHECK_THAT(without_space(kLimit, [&] { put_layer(to.store, "base/y", "1", "meta", random_bytes(2 << 20, 3)); }),
             Catch::Contains("EFBIG"));
  CHECK(to.store.list().empty());
  check_store(to.home);
  CHECK(pull_ref(to.store, "base/x:1", address).layer.tags.size() == 1);
}

}  // namespace
}  // namespace dsec::registry::test
