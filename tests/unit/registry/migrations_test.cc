#include <catch2/catch.hpp>
#include <span>

#include "core/base/error.h"
#include "core/base/sqlite.h"
#include "registry/store/local_store.h"
#include "registry/store/schema.h"
#include "tests/unit/registry/fixture.h"

namespace dsec::registry::test {
namespace {

constexpr std::size_t kFormats = std::size(kMigrations);

/// What an earlier dsec would have left of this index: its tables, with the same rows.
void write_as_format(std::size_t format, const fs::path& index, const fs::path& old, const Blob& data,
                     const Digest& chunks) {
  Database database(old);
  database.migrate(std::span(kMigrations).first(format));
  database.execute("ATTACH '" + index.native() + "' AS now");
  for (const char* table : {"layers", "blobs", "layer_blobs", "tags", "labels"})
    database.execute(std::string("INSERT INTO ") + table + " SELECT * FROM now." + table);
  if (format > 1)
    database.execute("INSERT INTO blob_sources (blob, registry, chunks, allow_any_fs) VALUES ('" + data.digest.hex() +
                     "', 'file:///registry', '" + chunks.hex() + "', 0)");
}

TEST_CASE("a store of every earlier format is opened and keeps what it has", "[registry][store][migrations]") {
  REQUIRE(kFormats > 1);
  for (std::size_t format = 1; format < kFormats; ++format) {
    INFO("format " << format);
    const TempDirectory directory(fs::temp_directory_path());
    const engine::Home home = engine::Home::open(directory.path() / "home");
    const fs::path index = home.store() / "index.db", old = directory.path() / "old.db";
    std::optional<engine::StoredLayer> added;
    {
      LocalStore store(home);
      const auto session = store.begin_session();
      const LayerManifest manifest = put_blobs(*session, "base/debian", "meta", "data");
      added = store.add(manifest, "12", engine::Trust::BuiltHere, *session, {{"team", "x"}});
    }
    const LayerImage& image = added->manifest.images.at(0);
    write_as_format(format, index, old, image.blob(BlobRole::Data), image.blob(BlobRole::Chunks).digest);
    for (const char* rest : {"", "-wal", "-shm"}) fs::remove(index.native() + rest);
    fs::rename(old, index);

    LocalStore store(home);
    const auto found = store.find(named("base/debian:12"));
    REQUIRE(found);
    CHECK(found->manifest == added->manifest);
    CHECK(found->labels == added->labels);
    CHECK(found->trusted);
    if (format > 1) {
      // The file went, so it is loaded on demand, with the size that the older format did not keep.
      fs::remove(store.blob_file(image.blob(BlobRole::Data).digest));
      const auto loaded = store.on_demand(image.blob(BlobRole::Data).digest, image.blob(BlobRole::Chunks).digest);
      REQUIRE(loaded);
      CHECK(loaded->blob.size == 4);
      CHECK(loaded->origins.at(0).registry == "file:///registry");
    }
    // What came with later formats works.
    put_layer(store, "base/other", "1", "other meta", "other data");
    store.index().take()->execute("INSERT INTO pins VALUES ('" + added->digest.hex() + "')");
    CHECK(store.list().size() == 2);
    CHECK(LocalStore(home).list().size() == 2);
  }
}

TEST_CASE("a store of a format that is not known yet is refused and left as it is", "[registry][store][migrations]") {
  const TempDirectory directory(fs::temp_directory_path());
  const engine::Home home = engine::Home::open(directory.path() / "home");
  { LocalStore store(home); }
  {
    Database database(home.store() / "index.db");
    database.execute("PRAGMA user_version=" + std::to_string(kFormats + 1));
  }
  CHECK_THROWS_WITH(LocalStore(home), Catch::Matchers::Contains("cannot open the store's index"));
  Database database(home.store() / "index.db");
  Statement version = database.prepare("PRAGMA user_version");
  REQUIRE(version.step());
  CHECK(version.number(0) == static_cast<std::int64_t>(kFormats + 1));
}

}  // namespace
}  // namespace dsec::registry::test
