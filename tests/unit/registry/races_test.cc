// Many processes at once: publishers, pullers, gc and repair on one store and one registry. Plain runs do few rounds.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <iostream>
#include <thread>

#include "core/base/error.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"
#include "registry/check.h"
#include "registry/collect/collect.h"
#include "registry/gc/gc.h"
#include "registry/layout/layout.h"
#include "registry/store/verify.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

/// Runs each action in a process of its own; a child that throws prints why and fails.
void race(const std::vector<std::function<void()>>& actions) {
  std::vector<pid_t> children;
  for (const auto& action : actions) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int code = 0;
    try {
      action();
    } catch (const Error& error) {
      std::cerr << "in a racing process: " << error.message() << std::endl;
      code = 1;
    } catch (...) {
      code = 2;
    }
    ::_exit(code);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

std::string name_of(int i) { return "base/l" + std::to_string(i); }

void check_store(const Scratch& scratch) {
  LocalStore store(scratch.home);
  Progress quiet;
  CHECK(verify_store(store, {}, quiet).problems.empty());
  collect_garbage(store, {}, false);
  CHECK(collect_garbage(store, {}, false).removed.empty());
  CHECK(temp_files_below(scratch.home.root()).empty());
}

TEST_CASE("importers and gc at once lose nothing that is tagged", "[registry][race]") {
  Scratch scratch;
  const int count = rounds(6);
  const auto importer = [&](int which) {
    return [&scratch, count, which] {
      LocalStore store(scratch.home);
      for (int i = 0; i < count; ++i) {
        // Some blobs are common to all, and those of untagged layers keep being collected under the others' hands.
        const std::string data = random_bytes(50'000, static_cast<unsigned>(i % 3));
        put_layer(store, name_of(i), "t" + std::to_string(which), "meta", data);
        put_layer(store, name_of(i), "", "loose " + std::to_string(which),
                  random_bytes(1000, static_cast<unsigned>(i)));
      }
    };
  };
  const auto collector = [&] {
    LocalStore store(scratch.home);
    for (int i = 0; i < count * 3; ++i) {
      const GcResult result = collect_garbage(store, {}, false);
      if (!result.warnings.empty()) throw failure(result.warnings.front());
    }
  };
  race({importer(1), importer(2), importer(3), collector, collector});
  check_store(scratch);
  CHECK(LocalStore(scratch.home).list().size() == static_cast<std::size_t>(count));
}

TEST_CASE("a layer that was confirmed for a lease stays until the lease is gone", "[registry][race]") {
  Scratch scratch;
  const int count = rounds(15);
  const auto runner = [&] {
    LocalStore store(scratch.home);
    for (int i = 0; i < count; ++i) {
      const auto layer = put_layer(store, "base/x", "", "meta", "data " + std::to_string(i % 2));
      engine::Lease lease;
      lease.id = engine::random_id(22);
      lease.creator = engine::ProcessIdentity::self();
      lease.spec.layers = {layer.digest};
      const fs::path directory = scratch.home.sandboxes() / lease.id;
      fs::create_directory(directory);
      lease.write(directory);
      bool there = true;
      try {
        store.confirm(lease.spec.layers);
      } catch (const Error&) {
        there = false;  // gc came first: the engine gives up here
      }
      for (int k = 0; there && k < 5; ++k) {
        if (!store.find(LayerRef::of(layer.digest))) throw failure("a confirmed layer is gone");
        for (const Blob& blob : layer.manifest.images[0].blobs) store.blob_path(blob.digest);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      remove_tree(directory);
    }
  };
  const auto collector = [&] {
    LocalStore store(scratch.home);
    for (int i = 0; i < count * 2; ++i) collect_garbage(store, {}, false);
  };
  race({runner, runner, collector, collector});
  check_store(scratch);
}

TEST_CASE("publishers, pullers, repair and gc at once leave a whole registry and whole stores", "[registry][race]") {
  Scratch scratch, puller;
  constexpr int kLayers = 4;
  for (int i = 0; i < kLayers; ++i)
    put_layer(scratch.store, name_of(i), "1", "meta", random_bytes(300'000, static_cast<unsigned>(i)));
  put_layer(scratch.store, "base/moving", "a", "meta a", "data a");
  put_layer(scratch.store, "base/moving", "b", "meta b", "data b");
  const Digest a = scratch.store.get(named("base/moving:a")).digest,
               b = scratch.store.get(named("base/moving:b")).digest;
  const auto address = RegistryAddress::parse(scratch.registry_url());
  const int count = rounds(3);

  const auto publisher = [&](const std::string& which) {
    return [&, which] {
      LocalStore store(scratch.home);
      for (int i = 0; i < count; ++i) {
        for (int k = 0; k < kLayers; ++k) publish_refs(store, {name_of(k) + ":1"}, address);
        // The same tag of two layers: the last wins.
        store.tag(store.get(named("base/moving:" + which)).digest, LayerName::parse("base/moved"), "x" + which);
        publish_refs(store, {"base/moving:" + which}, address);
      }
    };
  };
  const auto mover = [&](const Digest& digest) {
    return [&, digest] {
      Scratch own;
      for (int i = 0; i < count * 3; ++i) {
        own.store.tag(put_layer(own.store, "base/moving", "", digest == a ? "meta a" : "meta b",
                                digest == a ? "data a" : "data b")
                          .digest,
                      LayerName::parse("base/moving"), "now");
        publish_refs(own.store, {"base/moving:now"}, address);
      }
    };
  };
  const auto reader = [&] {
    LocalStore store(puller.home);
    for (int i = 0; i < count * 4; ++i) {
      for (const std::string& text : {name_of(i % kLayers) + ":1", std::string("base/moving:now")}) {
        Progress quiet;
        try {
          const Digest found = pull(store, named(text), address, quiet).layer.digest;
          if (text == "base/moving:now" && found != a && found != b) throw Error(ErrorKind::Internal, "a torn tag");
        } catch (const Error& error) {
          // Not published yet is what a reader may be told, and nothing else.
          if (error.kind() == ErrorKind::Internal || error.message().find("no layer") == std::string::npos)
            if (error.message().find("there is no dsec-registry.json") == std::string::npos &&
                error.message().find("ENOENT") == std::string::npos)
              throw;
        }
        store.untag(LayerName::parse("base/moving"), "now");
      }
    }
  };
  const auto collector = [&] {
    LocalStore one(puller.home), two(scratch.home);
    for (int i = 0; i < count * 4; ++i) {
      collect_garbage(one, {}, false);
      collect_garbage(two, {}, false);
    }
  };
  const auto repairer = [&] {
    Progress quiet;
    CheckOptions options;
    options.repair = true;
    for (int i = 0; i < count * 3; ++i) {
      if (!fs::exists(scratch.registry_path() / "dsec-registry.json")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      for (const RegistryProblem& problem : check_registry(address, options, quiet).problems)
        if (problem.kind != RegistryProblem::Kind::Unreferenced)
          throw failure("check found in a registry at work: " + problem.path + " " + problem.what);
    }
  };
  race({publisher("a"), publisher("b"), mover(a), mover(b), reader, reader, collector, repairer});
  check_store(scratch);
  check_store(puller);
  Progress quiet;
  const CheckResult result = check_registry(address, {}, quiet);
  for (const RegistryProblem& problem : result.problems) UNSCOPED_INFO(problem.path + " " + problem.what);
  CHECK(result.problems.empty());
  CHECK(result.tags == kLayers + 3);
  CHECK(temp_files_below(scratch.registry_path()).empty());
}

TEST_CASE("repair takes nothing that a publisher has announced, however old it looks", "[registry][race]") {
  Scratch scratch;
  for (int i = 0; i < 3; ++i)
    put_layer(scratch.store, name_of(i), "1", "meta " + std::to_string(i),
              random_bytes(60'000, static_cast<unsigned>(i)));
  for (int round = 0; round < rounds(4); ++round) {
    const std::string name = "r" + std::to_string(round);
    const auto address = RegistryAddress::parse(scratch.registry_url(name));
    publish_refs(scratch.store, {"base/l0:1"}, address);
    // What the publishers are about to need lies there already, unreferenced: their looking and the removal meet.
    for (int i = 1; i < 3; ++i) {
      const engine::StoredLayer layer = scratch.store.get(named(name_of(i) + ":1"));
      for (const Blob& blob : layer.manifest.images[0].blobs) {
        const fs::path place = scratch.registry_path(name) / blob_name(blob.digest);
        fs::create_directories(place.parent_path());
        fs::copy_file(scratch.store.blob_file(blob.digest), place, fs::copy_options::skip_existing);
        fs::permissions(place, fs::perms::owner_write, fs::perm_options::add);
        fs::last_write_time(place, fs::file_time_type::clock::now() - std::chrono::hours(1));
      }
    }
    const auto publisher = [&](int first) {
      return [&, first] {
        LocalStore store(scratch.home);
        publish_refs(store, {name_of(first) + ":1", name_of(3 - first) + ":1"}, address);
      };
    };
    const auto repairer = [&] {
      Progress quiet;
      CheckOptions options;
      options.repair = true;
      for (int i = 0; i < 4; ++i) check_registry(address, options, quiet);
    };
    race({publisher(1), repairer, publisher(2), repairer});
    Progress quiet;
    const CheckResult result = check_registry(address, {}, quiet);
    for (const RegistryProblem& problem : result.problems) UNSCOPED_INFO(problem.path + " " + problem.what);
    CHECK(result.problems.empty());
    CHECK(result.layers == 3);
  }
}

TEST_CASE("gc of a registry without any grace takes nothing that publishers have named", "[registry][race]") {
  Scratch scratch;
  const auto address = RegistryAddress::parse(scratch.registry_url());
  constexpr int kLayers = 3;
  for (int i = 0; i < kLayers; ++i)
    put_layer(scratch.store, name_of(0), std::to_string(i), "meta " + std::to_string(i),
              random_bytes(30'000, static_cast<unsigned>(i)));
  publish_refs(scratch.store, {name_of(0) + ":0"}, address);
  const int count = rounds(15);
  // Each moves a tag of its own, so that layers lose and get names all the time.
  const auto publisher = [&](const std::string& own) {
    return [&, own] {
      LocalStore store(scratch.home);
      Scratch reader;
      Progress quiet;
      for (int i = 0; i < count; ++i) {
        const Digest layer = store.get(named(name_of(0) + ":" + std::to_string((i + own[0]) % kLayers))).digest;
        store.tag(layer, LayerName::parse(name_of(0)), own);
        publish_refs(store, {name_of(0) + ":" + own}, address);
        // Nobody else moves the tag.
        if (pull(reader.store, named(name_of(0) + ":" + own), address, quiet).layer.digest != layer)
          throw failure("another layer was pulled than was published");
        reader.store.untag(LayerName::parse(name_of(0)), own);
        collect_garbage(reader.store, {}, false);
      }
    };
  };
  const auto collector = [&] {
    Progress quiet;
    for (int i = 0; i < count * 2; ++i) {
      const CollectResult result = collect_registry(address, "abcdef", {.grace = std::chrono::seconds(0)}, quiet);
      if (!result.warnings.empty()) throw failure(result.warnings.front());
    }
  };
  race({publisher("a"), publisher("b"), collector, collector});
  Progress quiet;
  collect_registry(address, "abcdef", {.grace = std::chrono::seconds(0)}, quiet);
  const CheckResult result = check_registry(address, {}, quiet);
  for (const RegistryProblem& problem : result.problems) UNSCOPED_INFO(problem.path + " " + problem.what);
  CHECK(result.problems.empty());
  CHECK(result.tags == 3);
  CHECK(temp_files_below(scratch.registry_path()).empty());
}

}  // namespace
}  // namespace dsec::registry::test
