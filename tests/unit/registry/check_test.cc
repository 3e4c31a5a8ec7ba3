#include "registry/check.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "registry/directory/directory_notes.h"
#include "registry/layout/layout.h"
#include "registry/layout/publisher_lease.h"
#include "registry/registries.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

using Kind = RegistryProblem::Kind;

struct Checked {
  Scratch scratch;
  RegistryAddress address = RegistryAddress::parse(scratch.registry_url());
  engine::StoredLayer layer = put_layer(scratch.store, "base/x", "1", "meta", "data");
  fs::path root = scratch.registry_path();
  Checked() { publish_refs(scratch.store, {"base/x:1"}, address); }
  CheckResult check(bool repair = false) {
    Progress quiet;
    CheckOptions options;
    options.repair = repair;
    return check_registry(address, options, quiet);
  }
  std::vector<Kind> kinds(bool repair = false) {
    std::vector<Kind> found;
    for (const RegistryProblem& problem : check(repair).problems) found.push_back(problem.kind);
    return found;
  }
};

TEST_CASE("a registry that is whole has no problems", "[registry][check]") {
  Checked checked;
  const CheckResult result = checked.check();
  CHECK(result.problems.empty());
  CHECK(result.tags == 1);
  CHECK(result.layers == 1);
  CHECK(result.blobs == 3);
  CHECK(result.bytes == 4 + 4 + 32);
}

TEST_CASE("check finds prefetch lists that are of no use, and repair removes them", "[registry][check]") {
  Checked checked;
  Progress quiet;
  const PrefetchList list{checked.layer.digest, {{Digest::of("data"), {{0, 1}}}}};
  publish_prefetch_list(checked.scratch.store, list, checked.address, quiet);
  CHECK(checked.check().problems.empty());
  const fs::path file = checked.root / prefetch_name(checked.layer.digest),
                 of_none = checked.root / prefetch_name(Digest::of("none"));
  overwrite(file, PrefetchList{checked.layer.digest, {{Digest::of("data"), {{1, 1}}}}}.text());
  fs::create_directories(of_none.parent_path());
  overwrite(of_none, PrefetchList{Digest::of("none"), {}}.text());
  CHECK(checked.kinds(true) == std::vector<Kind>{Kind::Leftover, Kind::Leftover});
  CHECK_FALSE(fs::exists(file));
  CHECK_FALSE(fs::exists(of_none));
  CHECK(checked.check().problems.empty());
}

TEST_CASE("check finds what is missing, truncated, altered, unreferenced and dangling", "[registry][check]") {
  Checked checked;
  const fs::path data = checked.root / blob_name(Digest::of("data"));
  fs::rename(data, checked.root / "kept");
  CHECK(checked.kinds() == std::vector<Kind>{Kind::Missing});
  fs::rename(checked.root / "kept", data);
  overwrite(data, "da");
  CHECK(checked.kinds() == std::vector<Kind>{Kind::Truncated});
  overwrite(data, "DATA");
  CHECK(checked.kinds() == std::vector<Kind>{Kind::Altered});
  overwrite(data, "data");
  const fs::path loose = checked.root / blob_name(Digest::of("loose"));
  fs::create_directories(loose.parent_path());
  std::ofstream(loose) << "loose";
  CHECK(checked.kinds() == std::vector<Kind>{Kind::Unreferenced});
  fs::remove(loose);
  overwrite(checked.root / "tags/base/x/1", "junk");
  CHECK(checked.kinds() == std::vector<Kind>{Kind::DamagedTag});
  overwrite(checked.root / "tags/base/x/1", Digest::of("gone").str());
  CHECK(checked.kinds() == std::vector<Kind>{Kind::DanglingTag});
  overwrite(checked.root / "tags/base/x/1", checked.layer.digest.str());
  CHECK(checked.kinds().empty());
  overwrite(checked.root / manifest_name(checked.layer.digest), "junk");
  // Its blobs have lost what refers to them.
  CHECK(checked.kinds() ==
        std::vector<Kind>{Kind::DamagedManifest, Kind::Unreferenced, Kind::Unreferenced, Kind::Unreferenced});
}

TEST_CASE("without content only sizes and references are looked at", "[registry][check]") {
  Checked checked;
  overwrite(checked.root / blob_name(Digest::of("data")), "DATA");
  Progress quiet;
  CheckOptions options;
  options.content = false;
  CHECK(check_registry(checked.address, options, quiet).problems.empty());
}

TEST_CASE("repair makes the registry one that publishing mends", "[registry][check]") {
  Checked checked;
  overwrite(checked.root / blob_name(Digest::of("data")), "DATA");
  overwrite(checked.root / "tags/base/x/2", "junk");
  CHECK(checked.kinds(true) == std::vector<Kind>{Kind::DamagedTag, Kind::Altered, Kind::Missing});
  CHECK(checked.kinds() == std::vector<Kind>{Kind::Missing});
  publish_refs(checked.scratch.store, {"base/x:1"}, checked.address);
  CHECK(checked.kinds().empty());
}

/// Whom file modes hold up, unlike root.
struct Unprivileged {
  Unprivileged() {
    if (::getuid() == 0) REQUIRE(::seteuid(65534) == 0);
  }
  ~Unprivileged() {
    if (::getuid() == 0 && ::seteuid(0) != 0) std::abort();
  }
};

TEST_CASE("repair removes nothing that it could not read", "[registry][check]") {
  Checked checked;
  const fs::path blob = checked.root / blob_name(Digest::of("data"));
  const std::vector<fs::path> files = {blob, checked.root / "tags/base/x/1",
                                       checked.root / manifest_name(checked.layer.digest)};
  for (const auto& entry : fs::recursive_directory_iterator(checked.root)) {
    fs::permissions(entry.path(), fs::perms::all);
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::minutes(10));
  }
  for (fs::path above = checked.root; above != fs::temp_directory_path() && above.has_relative_path();
       above = above.parent_path())
    fs::permissions(above, fs::perms::all);
  for (const fs::path& file : files) fs::permissions(file, fs::perms::none);
  {
    const Unprivileged unprivileged;
    CHECK(checked.kinds(true) == std::vector<Kind>{Kind::DamagedManifest, Kind::DamagedTag, Kind::Altered});
  }
  for (const fs::path& file : files) fs::permissions(file, fs::perms::all);
  CHECK(checked.kinds().empty());
}

TEST_CASE("an unreferenced blob is removed once it is old and nobody has announced it", "[registry][check]") {
  Checked checked;
  const fs::path loose = checked.root / blob_name(Digest::of("loose"));
  fs::create_directories(loose.parent_path());
  std::ofstream(loose) << "loose";
  CHECK(checked.kinds(true) == std::vector<Kind>{Kind::Unreferenced});
  CHECK(fs::exists(loose));
  fs::last_write_time(loose, fs::file_time_type::clock::now() - std::chrono::minutes(10));
  const RegistryRoot root = RegistryRoot::open(checked.address);
  const DirectoryNotes notes(root);
  {
    const PublisherLease lease(notes, "abcdef", {Digest::of("loose")});
    CHECK(checked.kinds(true).empty());
    CHECK(fs::exists(loose));
  }
  CHECK(checked.kinds(true) == std::vector<Kind>{Kind::Unreferenced});
  CHECK_FALSE(fs::exists(loose));
  CHECK(checked.kinds().empty());
}

TEST_CASE("what a killed publisher left is found and removed, what a live one writes is not", "[registry][check]") {
  Checked checked;
  const RegistryRoot root = RegistryRoot::open(checked.address);
  const DirectoryNotes notes(root);
  const fs::path shelf = checked.root / "blobs/sha256/aa";
  fs::create_directories(shelf);
  const PublisherLease live(notes, "abcdef", {});
  std::ofstream(shelf / (".tmp-" + live.publisher() + "-x")) << "half";
  CHECK(checked.kinds(true).empty());
  const pid_t child = ::fork();
  if (child == 0) {
    const PublisherLease lease(notes, "bcdefg", {});
    std::ofstream(shelf / (".tmp-" + lease.publisher() + "-x")) << "half";
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(checked.kinds(true) == std::vector<Kind>{Kind::Leftover, Kind::Leftover});
  CHECK(checked.kinds().empty());
  CHECK(files_below(shelf).size() == 1);
  // A temporary file of nobody: only its age tells.
  std::ofstream(shelf / ".tmp-cdefgh-abc-x") << "half";
  CHECK(checked.kinds(true).empty());
  fs::last_write_time(shelf / ".tmp-cdefgh-abc-x", fs::file_time_type::clock::now() - std::chrono::hours(1));
  CHECK(checked.kinds(true) == std::vector<Kind>{Kind::Leftover});
}

TEST_CASE("registries are added, listed, found and removed by name", "[registry][registries]") {
  Checked checked;
  ::setenv("DSEC_CONFIG", (checked.scratch.directory.path() / "config.yaml").c_str(), 1);
  add_registry(Config::load(), {"lab", checked.scratch.registry_url(), true, false});
  add_registry(Config::load(), {"lab", checked.scratch.registry_url(), true, false});  // the same again
  CHECK_THROWS_AS(add_registry(Config::load(), {"lab", "file:///other"}), Error);
  CHECK_THROWS_AS(add_registry(Config::load(), {"x", "3fs:///tmp"}), Error);
  add_registry(Config::load(), {"away", "file:///no/such/place"});
  const Config config = Config::load();
  const auto listed = list_registries(config);
  REQUIRE(listed.size() == 2);
  CHECK_THAT(listed[0].problem, Catch::Contains("ENOENT"));
  CHECK(listed[1].problem.empty());
  CHECK(find_registry(config, "lab").in_place);
  CHECK(find_registry(config, checked.scratch.registry_url()).in_place);
  CHECK_THROWS_WITH(find_registry(config, "lap"), "no registry 'lap' is configured");
  Progress silent;
  const auto tags = registry_tags(find_registry(config, "lab"), silent);
  REQUIRE(tags.size() == 1);
  CHECK(tags[0].ref == "base/x:1");
  CHECK(tags[0].bytes == 40);
  CHECK(tags[0].platform == "linux/amd64");
  CHECK(registry_tags(find_registry(config, "lab"), silent, LayerName::parse("base/y")).empty());

  // run and build: what is not here comes from the first registry that has it.
  Scratch other;
  Progress quiet;
  const std::vector<RegistryAddress> registries = {find_registry(config, "away"), find_registry(config, "lab")};
  const std::vector<LayerRef> refs = {named("base/x:1")};
  CHECK(ensure_local(other.store, refs, registries, quiet).at(0).digest == checked.layer.digest);
  CHECK(ensure_local(other.store, refs, {}, quiet).at(0).digest == checked.layer.digest);
  const std::vector<LayerRef> wrong = {named("base/z:1")};
  CHECK_THROWS_AS(ensure_local(other.store, wrong, registries, quiet), Error);
  remove_registry(config, "away");
  remove_registry(Config::load(), "lab");
  CHECK_THROWS_AS(remove_registry(Config::load(), "lab"), Error);
  ::unsetenv("DSEC_CONFIG");
}

}  // namespace
}  // namespace dsec::registry::test
