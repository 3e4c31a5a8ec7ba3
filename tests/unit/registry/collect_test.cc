// gc of registries of every kind that can be written to, beside those who work there.
#include "registry/collect/collect.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/collect/condemned.h"
#include "registry/collect/remover.h"
#include "registry/directory/directory_notes.h"
#include "registry/layout/layout.h"
#include "registry/layout/publisher_lease.h"
#include "registry/registries.h"
#include "registry/registry.h"
#include "tests/unit/registry/failing_readdir.h"
#include "tests/unit/registry/kinds.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;

CollectResult collect(const RegistryAddress& address, seconds grace = seconds(0), bool dry_run = false,
                      std::set<Digest> keep = {}) {
  Progress quiet;
  return collect_registry(address, "abcdef",
                          {.dry_run = dry_run, .grace = grace, .keep = std::move(keep), .settle = seconds(0)}, quiet);
}

std::vector<std::string> names(const std::vector<CollectItem>& items, CollectItem::Kind kind) {
  std::vector<std::string> found;
  for (const CollectItem& item : items)
    if (item.kind == kind) found.push_back(item.name);
  return found;
}

/// A registry with base/x:1, and a layer of base/x that had the tag before.
struct Moved : Kinds {
  engine::StoredLayer old, now;
  explicit Moved(const std::string& kind) : Kinds(kind), old(published("old meta")), now(published("new meta")) {}
  engine::StoredLayer published(const std::string& meta) {
    engine::StoredLayer layer = put_layer(from.store, "base/x", "1", meta, "shared data");
    publish_refs(from.store, {"base/x:1"}, address);
    return layer;
  }
  bool has(const Digest& layer) {
    return open_registry(address, OpenMode::Read, quiet)->resolve(LayerRef::of(layer)).has_value();
  }
  bool has_blob(const std::string& content) {
    return open_registry(address, OpenMode::Read, quiet)->blob_size(Digest::of(content)).has_value();
  }
  std::vector<std::string> notes() {
    return open_registry(address, OpenMode::Read, quiet)->remover()->notes().names(kCondemned);
  }
  bool frees_blobs() const { return address.kind != RegistryAddress::Kind::Oci; }
};

#define FOR_EACH_WRITABLE_KIND() Moved moved(GENERATE(std::string("file"), std::string("oci"), std::string("s3")))

TEST_CASE("gc of a registry removes what has no name, with the blobs that nothing else has", "[registry][collect]") {
  FOR_EACH_WRITABLE_KIND();
  const CollectResult result = collect(moved.address);
  CHECK(result.warnings.empty());
  CHECK(names(result.removed, CollectItem::Kind::Layer) ==
        std::vector<std::string>{"base/x " + moved.old.digest.brief()});
  CHECK(result.layers == 1);
  CHECK_FALSE(moved.has(moved.old.digest));
  CHECK(moved.has(moved.now.digest));
  CHECK(result.frees_itself == !moved.frees_blobs());
  if (moved.frees_blobs()) {
    CHECK(result.bytes == 8);
    CHECK_FALSE(moved.has_blob("old meta"));
  }
  CHECK(moved.has_blob("shared data"));
  CHECK(check_registry(moved.address, {}, moved.quiet).problems.empty());
  CHECK(pull_ref(moved.to.store, "base/x:1", moved.readable).layer.digest == moved.now.digest);
  CHECK(collect(moved.address).removed.empty());
  // It comes back by publishing it again.
  publish_refs(moved.from.store, {moved.old.digest.str()}, moved.address);
  CHECK(moved.has(moved.old.digest));
}

TEST_CASE("gc of a registry removes the prefetch list of a layer with it, and no other", "[registry][collect]") {
  FOR_EACH_WRITABLE_KIND();
  const auto list = [&](const engine::StoredLayer& layer) {
    return open_registry(moved.address, OpenMode::Read, moved.quiet)->prefetch_list(layer.digest);
  };
  for (const engine::StoredLayer& layer : {moved.old, moved.now})
    CHECK(publish_prefetch_list(moved.from.store, {layer.digest, {}}, moved.address, moved.quiet));
  CHECK(list(moved.old));
  collect(moved.address);
  CHECK_FALSE(list(moved.old));
  CHECK(list(moved.now));
  CHECK(check_registry(moved.address, {}, moved.quiet).problems.empty());
}

TEST_CASE("gc of a registry waits until nothing has named a layer for long enough", "[registry][collect]") {
  FOR_EACH_WRITABLE_KIND();
  const CollectResult first = collect(moved.address, seconds(2));
  CHECK(first.removed.empty());
  CHECK(names(first.waiting, CollectItem::Kind::Layer).size() == 1);
  CHECK(first.waiting_bytes == moved.old.manifest.total_size() - 11 - 32);
  CHECK(first.next > std::chrono::system_clock::now());
  std::this_thread::sleep_for(seconds(3));
  // A tag in between begins it anew, even when it has gone again before gc looks.
  moved.from.store.tag(moved.old.digest, LayerName::parse("base/x"), "again");
  publish_refs(moved.from.store, {"base/x:again"}, moved.address);
  moved.from.store.tag(moved.now.digest, LayerName::parse("base/x"), "again");
  publish_refs(moved.from.store, {"base/x:again"}, moved.address);
  CHECK(collect(moved.address, seconds(2)).removed.empty());
  CHECK(moved.has(moved.old.digest));
  std::this_thread::sleep_for(seconds(3));
  CHECK(names(collect(moved.address, seconds(2)).removed, CollectItem::Kind::Layer).size() == 1);
  CHECK_FALSE(moved.has(moved.old.digest));
}

TEST_CASE("a dry run of gc changes nothing in a registry", "[registry][collect]") {
  FOR_EACH_WRITABLE_KIND();
  const CollectResult result = collect(moved.address, seconds(0), true);
  CHECK(names(result.removed, CollectItem::Kind::Layer).size() == 1);
  if (moved.frees_blobs()) CHECK(result.bytes == 8);
  CHECK(moved.has(moved.old.digest));
  CHECK(collect(moved.address, seconds(100), true).waiting.size() == 1);
  CHECK(moved.notes().empty());
}

TEST_CASE("gc of a registry keeps what locks name, and what kept layers stand on", "[registry][collect]") {
  FOR_EACH_WRITABLE_KIND();
  Digest snapshot = moved.old.digest, above = snapshot;
  {
    const auto session = moved.from.store.begin_session();
    LayerManifest manifest = put_blobs(*session, "snapshot/s", "m3", "d3");
    manifest.lowers = {moved.old.digest};
    snapshot = moved.from.store.add(manifest, "1", engine::Trust::BuiltHere, *session).digest;
    manifest = put_blobs(*session, "workspace/w", "m4", "d4");
    manifest.provenance.built_on = snapshot;
    above = moved.from.store.add(manifest, "1", engine::Trust::BuiltHere, *session).digest;
  }
  publish_refs(moved.from.store, {snapshot.str(), above.str()}, moved.address);
  CHECK(collect(moved.address, seconds(0), false, {above}).removed.empty());
  const CollectResult result = collect(moved.address, seconds(0), false, {snapshot});
  CHECK(names(result.removed, CollectItem::Kind::Layer) == std::vector<std::string>{"workspace/w " + above.brief()});
  CHECK(moved.has(moved.old.digest));
  CHECK(names(collect(moved.address).removed, CollectItem::Kind::Layer).size() == 2);
}

TEST_CASE("what a web server shows is collected where its directory is", "[registry][collect]") {
  Kinds kinds("https");
  put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  const std::string text = told([&] { collect(kinds.readable); });
  CHECK_THAT(text, Contains("it can be read, nothing else") && Contains("dsec registry gc file:///PATH"));
}

TEST_CASE("an OCI registry that lets nobody delete says so", "[registry][collect]") {
  Moved moved("oci");
  moved.registry.state().deletes = false;
  const std::string text = told([&] { collect(moved.address); });
  CHECK_THAT(text, Contains("lets nobody delete") && Contains("storage.delete.enabled"));
  CHECK(moved.has(moved.old.digest));
}

TEST_CASE("images among the layers of an OCI registry are nothing to gc and check", "[registry][collect]") {
  Moved moved("oci");
  moved.registry.state().manifests["team/layers/base/image"]["1"] =
      R"({"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"x"}})";
  CHECK(collect(moved.address).layers == 1);
  CHECK(check_registry(moved.address, {}, moved.quiet).problems.empty());
}

TEST_CASE("nothing is removed while a tag or a manifest cannot be read", "[registry][collect]") {
  Moved moved("file");
  const fs::path tag = moved.from.registry_path() / "tags/base/x/1";
  const std::string text = read_file(tag);
  overwrite(tag, "junk");
  CollectResult result = collect(moved.address);
  CHECK(result.removed.empty());
  REQUIRE(result.warnings.size() == 1);
  CHECK_THAT(result.warnings[0], Contains("a tag that cannot be read"));
  overwrite(tag, text);
  const fs::path manifest = moved.from.registry_path() / manifest_name(moved.now.digest);
  overwrite(manifest, "junk");
  result = collect(moved.address);
  CHECK(result.removed.empty());
  CHECK_THAT(result.warnings.at(0), Contains("a manifest that cannot be read"));
  CHECK(moved.has_blob("old meta"));
}

TEST_CASE("nothing is removed while a lease cannot be read, unless it is too old to count", "[registry][collect]") {
  Moved moved(GENERATE(std::string("file"), std::string("s3")));
  const std::string newer = R"({"schema":2,"boot_id":"x","pid":1,"start_ticks":1,"expires":1,"blobs":[]})";
  const std::string content = GENERATE_COPY(std::string("junk"), newer);
  const bool is_file = moved.address.kind == RegistryAddress::Kind::Directory;
  const fs::path file = moved.from.registry_path() / "leases/other1-x.json";
  if (is_file)
    std::ofstream(file) << content;
  else
    moved.bucket.state().objects["team/leases/other1-x.json"] = content;
  moved.bucket.state().modified = "Thu, 01 Jan 2099 00:00:00 GMT";
  CollectResult result = collect(moved.address);
  CHECK(result.removed.empty());
  REQUIRE(result.warnings.size() == 1);
  CHECK_THAT(result.warnings[0], Contains("a lease that cannot be read: leases/other1-x.json"));
  CHECK(moved.has_blob("old meta"));
  const auto problems = check_registry(moved.address, {.repair = is_file}, moved.quiet).problems;
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0].what, Contains("could not be read"));
  moved.bucket.state().modified = "Thu, 01 Jan 1998 00:00:00 GMT";
  if (is_file) fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(2));
  result = collect(moved.address);
  CHECK(names(result.removed, CollectItem::Kind::Lease).size() == 1);
  CHECK(names(result.removed, CollectItem::Kind::Layer).size() == 1);
}

TEST_CASE("a lease that the server does not give out protects everything", "[registry][collect]") {
  Moved moved("s3");
  moved.bucket.state().objects["team/leases/other1-x.json"] = "{}";
  moved.bucket.state().instead = [](const dsec::test::Seen& seen) -> std::optional<dsec::test::Reply> {
    if (seen.target.find("/leases/other1-x.json") == std::string::npos) return std::nullopt;
    return dsec::test::answer("403 Forbidden");
  };
  const CollectResult result = collect(moved.address);
  CHECK(result.removed.empty());
  CHECK_THAT(result.warnings.at(0), Contains("a lease that cannot be read"));
  CHECK(moved.has(moved.old.digest));
}

TEST_CASE("a listing that breaks off is not taken for all there is", "[registry][collect]") {
  Moved moved("file");
  // Both layers are named, so that nothing is to go.
  moved.from.store.tag(moved.old.digest, LayerName::parse("base/x"), "old");
  publish_refs(moved.from.store, {"base/x:old"}, moved.address);
  for (const auto& entry : fs::recursive_directory_iterator(moved.from.registry_path()))
    if (entry.is_regular_file())
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  const bool of_manifests = GENERATE(true, false);
  const std::string place =
      of_manifests ? "/" + fs::path(manifest_name(moved.old.digest)).parent_path().native() : "/tags/base";
  {
    const FailingReaddir failing(place, 2);
    CHECK_THAT(told([&] {
                 const CollectResult result = collect(moved.address);
                 CHECK(result.removed.empty());
                 for (const std::string& warning : result.warnings) throw failure(warning);
               }),
               Contains("EIO"));
    CHECK_THAT(told([&] { check_registry(moved.address, {.repair = true}, moved.quiet); }), Contains("EIO"));
  }
  CHECK(moved.has(moved.old.digest));
  CHECK(moved.has_blob("old meta"));
  CHECK(check_registry(moved.address, {}, moved.quiet).problems.empty());
}

TEST_CASE("without a catalogue an OCI registry's layers are checked, and gc removes nothing", "[registry][collect]") {
  Moved moved("oci");
  moved.registry.state().catalogue = false;
  const CheckResult result = check_registry(moved.address, {}, moved.quiet);
  CHECK(result.problems.empty());
  CHECK(result.layers == 2);
  CHECK(result.tags == 0);
  CHECK_THAT(result.left_out, Contains("no catalogue"));
  const CollectResult collected = collect(moved.address);
  CHECK(collected.removed.empty());
  REQUIRE(collected.warnings.size() == 1);
  CHECK_THAT(collected.warnings[0], Contains("no catalogue"));
  CHECK(moved.has(moved.old.digest));
}

TEST_CASE("gc keeps what a live publisher has announced", "[registry][collect]") {
  Moved moved(GENERATE(std::string("file"), std::string("s3")));
  const auto registry = open_registry(moved.address, OpenMode::Write, moved.quiet);
  const auto contents = contents_of(moved.from.store);
  auto publisher = registry->publisher(*contents, "abcdef", {moved.old.digest, Digest::of("loose")});
  CHECK(collect(moved.address).removed.empty());
  publisher = registry->publisher(*contents, "abcdef", {Digest::of("old meta")});
  // The layer was not announced, its blob was.
  const CollectResult result = collect(moved.address);
  CHECK(names(result.removed, CollectItem::Kind::Layer).size() == 1);
  CHECK(names(result.removed, CollectItem::Kind::Blob).empty());
  CHECK(moved.has_blob("old meta"));
  publisher.reset();
  CHECK(names(collect(moved.address).removed, CollectItem::Kind::Blob).size() == 1);
}

TEST_CASE("a publisher that could not renew its lease for long names nothing any more", "[registry][collect]") {
  Moved moved("file");
  const RegistryRoot root = RegistryRoot::open(moved.address);
  const DirectoryNotes notes(root);
  std::atomic<int> now = 100;
  KeptLease lease(notes, "other1", {moved.old.digest}, PublisherLease::Work::Publishes, [&] { return seconds(now); });
  lease.require();
  now += 1700;
  lease.require();
  now += 200;
  CHECK_THROWS_WITH(lease.require(), Contains("could not be renewed"));
}

TEST_CASE("a publisher waits for a gc that removes what it announced", "[registry][collect]") {
  Moved moved("file");
  const RegistryRoot root = RegistryRoot::open(moved.address);
  const DirectoryNotes notes(root);
  auto lease = std::make_unique<PublisherLease>(notes, "other1", std::set<Digest>{moved.old.digest},
                                                PublisherLease::Work::Removes);
  std::atomic<bool> published = false;
  std::thread publisher([&] {
    LocalStore store(moved.from.home);
    publish_refs(store, {moved.old.digest.str()}, moved.address);
    published = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  CHECK_FALSE(published);
  // What nobody removes is published meanwhile.
  publish_refs(moved.from.store, {"base/x:1"}, moved.address);
  fs::remove(moved.from.registry_path() / manifest_name(moved.old.digest));
  lease.reset();
  publisher.join();
  CHECK(moved.has(moved.old.digest));
}

TEST_CASE("a layer of an OCI registry that gets a tag while it goes is put back", "[registry][collect]") {
  Moved moved("oci");
  bool done = false;
  moved.registry.state().before = [&](const dsec::test::Seen& seen) {
    if (seen.method != "DELETE" || done) return;
    done = true;
    // As a publisher does that has seen that the layer is there, and sets its tag.
    auto& manifests = moved.registry.state().manifests;
    const std::string bytes = manifests["team/layers"]["layer-" + moved.old.digest.hex()];
    manifests["team/layers/base/x"]["late"] = bytes;
  };
  collect(moved.address);
  moved.registry.state().before = nullptr;
  CHECK(done);
  CHECK(moved.has(moved.old.digest));
  CHECK(check_registry(moved.address, {}, moved.quiet).problems.empty());
}

TEST_CASE("check of a registry finds what locks name and is not there", "[registry][collect]") {
  FOR_EACH_WRITABLE_KIND();
  CheckOptions options;
  options.pinned = {{moved.old.digest, "a/dsec.lock"}, {Digest::of("gone"), "b/dsec.lock"}};
  const auto problems = check_registry(moved.address, options, moved.quiet).problems;
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].kind == RegistryProblem::Kind::Missing);
  CHECK_THAT(problems[0].what, Contains("b/dsec.lock"));
}

TEST_CASE("check of a bucket finds what nothing names, and what stopped publishers left", "[registry][collect]") {
  Moved moved("s3");
  auto& objects = moved.bucket.state().objects;
  objects["team/" + blob_name(Digest::of("loose"))] = "loose";
  objects["team/leases/abcdef-x.json"] =
      R"({"schema":1,"boot_id":"other","pid":1,"start_ticks":1,"pid_namespace":"","expires":1,"blobs":[]})";
  const auto problems = check_registry(moved.address, {}, moved.quiet).problems;
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].kind == RegistryProblem::Kind::Leftover);
  CHECK(problems[1].kind == RegistryProblem::Kind::Unreferenced);
  const CollectResult result = collect(moved.address);
  CHECK(names(result.removed, CollectItem::Kind::Lease).size() == 1);
  CHECK(check_registry(moved.address, {}, moved.quiet).problems.empty());
}

TEST_CASE("check of an OCI registry finds what is missing and altered", "[registry][collect]") {
  Moved moved("oci");
  auto& blobs = moved.registry.state().blobs["team/layers"];
  blobs[Digest::of("old meta").str()] = "OLD meta";
  blobs.erase(Digest::of("new meta").str());
  moved.registry.state().manifests["team/layers"].erase("layer-" + moved.now.digest.hex());
  std::vector<RegistryProblem::Kind> kinds;
  for (const auto& problem : check_registry(moved.address, {}, moved.quiet).problems) kinds.push_back(problem.kind);
  CHECK(kinds == std::vector{RegistryProblem::Kind::DanglingTag, RegistryProblem::Kind::Altered});
  CHECK_THROWS_AS(check_registry(moved.address, {.repair = true}, moved.quiet), Error);
}

TEST_CASE("notes of what is condemned are read as they were written, and junk does not count", "[registry][collect]") {
  const CondemnedNote note{Digest::of("a"), true, 17};
  CHECK(CondemnedNote::parse(note.text()) == note);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = note.text();
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text : {std::string(""), std::string("7"), std::string("{}"), with("17", "-1"),
                                  with("17", "x"), with("\"layer\"", "\"tag\""), with("sha256:", "md5:")})
    CHECK_THROWS_AS(CondemnedNote::parse(text), Error);
  Moved moved("file");
  const fs::path folder = moved.from.registry_path() / "condemned";
  fs::create_directories(folder);
  std::ofstream(folder / (moved.old.digest.hex() + ".json")) << "junk";
  // About something else than it is named after.
  std::ofstream(folder / (Digest::of("b").hex() + ".json")) << note.text();
  std::ofstream(folder / "README") << "ours";
  CHECK(collect(moved.address, seconds(100)).waiting.size() == 1);
}

TEST_CASE("what a publisher takes off the list while gc works stays off it", "[registry][collect]") {
  FOR_EACH_WRITABLE_KIND();
  const auto registry = open_registry(moved.address, OpenMode::Read, moved.quiet);
  const auto remover = registry->remover();
  const Notes& notes = remover->notes();
  Condemned seen;
  seen.layers[Digest::of("a")] = 17;
  seen.layers[Digest::of("b")] = 18;
  seen.write({}, notes, "abcdef-x");
  CHECK(Condemned::read(notes) == seen);
  pardon(notes, {Digest::of("a"), Digest::of("nothing")});
  Condemned next = seen;
  next.blobs[Digest::of("c")] = 19;
  next.write(seen, notes, "abcdef-x");
  Condemned expected = next;
  expected.layers.erase(Digest::of("a"));
  CHECK(Condemned::read(notes) == expected);
  Condemned{}.write(expected, notes, "abcdef-x");
  CHECK(moved.notes().empty());
}

TEST_CASE("a publisher who may not delete takes a layer off the list all the same", "[registry][collect]") {
  Moved moved("oci");
  CHECK(collect(moved.address, seconds(2)).waiting.size() == 1);
  moved.registry.state().deletes = false;
  std::this_thread::sleep_for(seconds(3));
  publish_refs(moved.from.store, {moved.old.digest.str()}, moved.address);
  const auto registry = open_registry(moved.address, OpenMode::Read, moved.quiet);
  CHECK(Condemned::read(registry->remover()->notes()).layers.empty());
}

}  // namespace
}  // namespace dsec::registry::test
