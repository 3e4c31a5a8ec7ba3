#include "core/engine/memory_snapshots.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/error.h"
#include "core/engine/sandbox_records.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;

struct Place {
  Place() : directory(fs::temp_directory_path()), home(Home::open(directory.path() / "home")), snapshots(home) {}
  MemorySnapshots::Draft draft(const std::string& name, const std::string& layer = "base") const {
    MemorySnapshot snapshot;
    snapshot.name = name;
    snapshot.sandbox = "aaaaaabbbbbbbbbbbbbbbb";
    snapshot.spec.backend = "microvm";
    snapshot.spec.layers = {Digest::of(layer)};
    snapshot.made = 1'700'000'000;
    MemorySnapshots::Draft made(snapshots, snapshot);
    std::ofstream(made.place() / "memory") << std::string(8192, 'm');
    return made;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> problems, found;
    for (const MemorySnapshot& snapshot : snapshots.list(problems)) found.push_back(snapshot.name);
    CHECK(problems.empty());
    return found;
  }
  TempDirectory directory;
  Home home;
  MemorySnapshots snapshots;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "none";
}

}  // namespace

TEST_CASE("a memory snapshot is found by its name, as it was saved", "[engine][memory_snapshots]") {
  const Place place;
  const MemorySnapshot kept = place.draft("one").keep();
  CHECK(place.names() == std::vector<std::string>{"one"});
  const MemorySnapshot found = place.snapshots.find("one");
  CHECK(found.sandbox == kept.sandbox);
  CHECK(found.spec == kept.spec);
  CHECK(found.made == 1'700'000'000);
  CHECK(found.bytes >= 8192);
  CHECK(fs::file_size(found.place / "memory") == 8192);
}

TEST_CASE("one that is not kept leaves nothing", "[engine][memory_snapshots]") {
  const Place place;
  {
    const MemorySnapshots::Draft draft = place.draft("");
    CHECK(fs::exists(draft.snapshot().place / "memory"));
    CHECK(place.names().empty());
  }
  CHECK(fs::is_empty(place.home.root() / "vm/saved"));
}

TEST_CASE("its layers are kept, also while it is made", "[engine][memory_snapshots]") {
  const Place place;
  place.draft("one", "first").keep();
  const MemorySnapshots::Draft draft = place.draft("two", "second");
  const std::vector<Digest> layers = leased_layers(place.home);
  for (const char* layer : {"first", "second"}) CHECK(std::count(layers.begin(), layers.end(), Digest::of(layer)) == 1);
  place.snapshots.remove("one");
  CHECK(leased_layers(place.home) == std::vector<Digest>{Digest::of("second")});
}

TEST_CASE("a name is taken once, and is one", "[engine][memory_snapshots]") {
  const Place place;
  place.draft("one").keep();
  MemorySnapshots::Draft second = place.draft("one");
  CHECK_THAT(message_of([&] { second.keep(); }), Catch::Contains("already"));
  CHECK_THAT(message_of([&] { place.snapshots.check_name("one"); }), Catch::Contains("already"));
  CHECK(message_of([&] { place.snapshots.check_name("two"); }) == "none");
  for (const char* name : {"", ".", "..", "../one", ".lock", "a/b", "-x", "a b"})
    CHECK_THAT(message_of([&] { place.snapshots.check_name(name); }), Catch::Contains("no valid name"));
  CHECK_THAT(message_of([&] { place.snapshots.check_name("0123456789ab"); }), Catch::Contains("saved guest"));
  for (const char* name : {"", "..", "../saved", ".lock", "two"}) CHECK_FALSE(place.snapshots.remove(name));
  CHECK(place.snapshots.remove("one"));
  CHECK(place.names().empty());
}

TEST_CASE("a damaged one is told of, and nobody goes on from it", "[engine][memory_snapshots]") {
  const Place place;
  const MemorySnapshot kept = place.draft("one").keep();
  for (const char* text :
       {"", "{", "[]", "null", R"({"version": 99})", R"({"version": 1, "sandbox": 5})",
        R"({"version": 1, "sandbox": "x", "made": 1, "spec": 5})", R"({"version": 1, "sandbox": "x", "made": 1})"}) {
    std::ofstream(kept.place / "snapshot.json", std::ios::trunc) << text;
    std::vector<std::string> problems;
    CHECK(place.snapshots.list(problems).empty());
    CHECK(problems.size() == 1);
    CHECK_THROWS_AS(place.snapshots.find("one"), Error);
    CHECK(leased_layers(place.home).empty());
  }
}

}  // namespace dsec::engine
