#include "layers/erofs/erofs_writer.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "layers/archive/tar_source.h"
#include "layers/import.h"
#include "tests/support/test_store.h"
#include "tests/unit/layers/tar_builder.h"

using namespace dsec;
using namespace dsec::layers;
namespace fs = std::filesystem;

namespace {

std::string sample_tar() {
  return TarBuilder()
      .dir("usr/bin", 0711, {.uid = "1"})
      .file("usr/bin/tool", std::string(300'000, 't'), {.mode = 04755})
      .hardlink("usr/bin/alias", "usr/bin/tool")
      .file("same", std::string(300'000, 't'))
      .file("b", "small", {.pax = {{"SCHILY.xattr.user.z", "1"}, {"SCHILY.xattr.user.a", "2"}, {"mtime", "-1.5"}}})
      .symlink("link", std::string(300, 'l'))
      .add("null", {.type = '3', .major = 1, .minor = 3})
      .file(std::string(255, 'n'), "long")
      .str();
}

engine::StoredLayer import_tar(testing::TestStore& store, const fs::path& tar, ImportOptions options) {
  TarSource source(tar.native(), tar.parent_path());
  Progress progress;
  return import_layer(store, source, options, progress);
}

ImportOptions options_for(const char* name) { return {.name = LayerName::parse(name)}; }

CommandResult check_image(testing::TestStore& store, const LayerImage& image) {
  std::vector<std::string> argv = {Mkfs::find().program.parent_path() / "fsck.erofs"};
  if (image.find(BlobRole::Data))
    argv.push_back("--device=" + store.blob_path(image.blob(BlobRole::Data).digest).native());
  argv.push_back("--extract");
  argv.push_back(store.blob_path(image.blob(BlobRole::Meta).digest));
  return run_command({.argv = argv});
}

}  // namespace

TEST_CASE("the same archive gives the same layer at two places, at two times and under two umasks", "[layers][erofs]") {
  const TempDirectory one(fs::temp_directory_path()), two(fs::temp_directory_path());
  write_file_atomic(one.path() / "a.tar", sample_tar());
  testing::TestStore first(one.path() / "store"), second(two.path() / "another store");
  const engine::StoredLayer a = import_tar(first, one.path() / "a.tar", options_for("base/x"));
  const mode_t old_mask = ::umask(077);
  ::setenv("SOURCE_DATE_EPOCH", "1234567", 1);
  write_file_atomic(two.path() / "b.tar", sample_tar());
  const engine::StoredLayer b = import_tar(second, two.path() / "b.tar", options_for("base/x"));
  ::unsetenv("SOURCE_DATE_EPOCH");
  ::umask(old_mask);
  CHECK(a.digest == b.digest);
  CHECK(a.manifest.canonical() == b.manifest.canonical());
  CHECK(a.manifest.images.at(0).blobs.size() == 3);
}

TEST_CASE("an image has whole blocks, sound metadata and a digest for each piece of its data", "[layers][erofs]") {
  const TempDirectory work(fs::temp_directory_path());
  write_file_atomic(work.path() / "a.tar", sample_tar());
  testing::TestStore store(work.path() / "store");
  const engine::StoredLayer layer = import_tar(store, work.path() / "a.tar", options_for("base/x"));
  const LayerImage& image = layer.manifest.images.at(0);
  const Blob &meta = image.blob(BlobRole::Meta), &data = image.blob(BlobRole::Data),
             &chunks = image.blob(BlobRole::Chunks);
  CHECK(meta.size % 4096 == 0);
  CHECK(data.size % 4096 == 0);
  // Twice the same content is stored once.
  CHECK(data.size < 600'000);
  const std::string content = read_file(store.blob_path(data.digest)),
                    digests = read_file(store.blob_path(chunks.digest));
  REQUIRE(digests.size() == 32 * ((data.size + (64 << 10) - 1) / (64 << 10)));
  std::string hex;
  for (const char c : digests.substr(32, 32)) {
    char digit[3];
    std::snprintf(digit, sizeof digit, "%02x", static_cast<unsigned char>(c));
    hex += digit;
  }
  CHECK(hex == Digest::of(content.substr(64 << 10, 64 << 10)).hex());
  const CommandResult checked = check_image(store, image);
  INFO(checked.out << checked.err);
  CHECK(checked.status.ok());
  // "usr" has no entry of its own, and neither has the root.
  CHECK(layer.manifest.implicit_parents == std::vector<std::string>{"", "usr"});
}

TEST_CASE("compression makes one sound blob", "[layers][erofs]") {
  const TempDirectory work(fs::temp_directory_path());
  write_file_atomic(work.path() / "a.tar", sample_tar());
  for (const char* compression : {"lz4", "zstd"}) {
    testing::TestStore store(work.path() / compression);
    ImportOptions options = options_for("toolkit/x");
    options.compression = compression;
    const engine::StoredLayer layer = import_tar(store, work.path() / "a.tar", options);
    REQUIRE(layer.manifest.images.at(0).blobs.size() == 1);
    CHECK(layer.manifest.images.at(0).compression == compression);
    CHECK(layer.manifest.total_size() < 100'000);
    CHECK(check_image(store, layer.manifest.images.at(0)).status.ok());
  }
}

TEST_CASE("a layer placed at a path has that path's parents as implicit ones", "[layers][erofs]") {
  const TempDirectory work(fs::temp_directory_path());
  write_file_atomic(work.path() / "a.tar", TarBuilder().dir("./", 0700).file("f", "f").hardlink("g", "f").str());
  testing::TestStore store(work.path() / "store");
  ImportOptions options = options_for("toolkit/x");
  options.to = "/opt/./tools/";
  const engine::StoredLayer layer = import_tar(store, work.path() / "a.tar", options);
  CHECK(layer.manifest.implicit_parents == std::vector<std::string>{"", "opt"});
  CHECK(layer.manifest.provenance.options.at("to") == "/opt/tools");
  options.to = "/opt/../..";
  CHECK_THROWS_AS(import_tar(store, work.path() / "a.tar", options), Error);
}

TEST_CASE("an archive without content still makes devices that can be attached", "[layers][erofs]") {
  const TempDirectory work(fs::temp_directory_path());
  write_file_atomic(work.path() / "a.tar", "");
  testing::TestStore store(work.path() / "store");
  const engine::StoredLayer layer = import_tar(store, work.path() / "a.tar", options_for("base/empty"));
  CHECK(layer.manifest.images.at(0).blob(BlobRole::Data).size == 4096);
  CHECK(check_image(store, layer.manifest.images.at(0)).status.ok());
}

TEST_CASE("after a failure nothing is left, neither a file nor a process", "[layers][erofs]") {
  const TempDirectory work(fs::temp_directory_path());
  testing::TestStore store(work.path() / "store");
  class Failing : public Source {
    SourceFacts examine(const SourceOptions&, Progress&) override { return {}; }
    void emit(std::size_t, TreeSink& sink) override {
      Entry entry;
      entry.path = "big";
      entry.size = 100'000'000;
      sink.entry(entry);
      sink.data(std::string(3'000'000, 'x'));
      throw failure("the input broke");
    }
  } source;
  Progress progress;
  try {
    import_layer(store, source, options_for("base/x"), progress);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.message() == "cannot import base/x:latest: the input broke");
  }
  CHECK(store.files() == 0);
  CHECK(store.list().empty());
}

TEST_CASE("when mkfs.erofs fails its own words are told", "[layers][erofs]") {
  const TempDirectory work(fs::temp_directory_path());
  write_file_atomic(work.path() / "mkfs", "#!/bin/sh\necho '<E> erofs: no space' >&2\nexit 3\n", 0755);
  testing::TestStore store(work.path() / "store");
  const auto session = store.begin_session();
  ErofsWriter writer({work.path() / "mkfs", "1.9.4"}, *session, {.uuid = uuid_of(Digest::of("x"))});
  const auto write_all_of_it = [&] {
    for (int i = 0; i < 5000; ++i) {
      Entry entry;
      entry.path = "f" + std::to_string(i);
      entry.size = 4096;
      writer.entry(entry);
      writer.data(std::string(4096, 'x'));
    }
    writer.finish();
  };
  try {
    write_all_of_it();
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.message() == "mkfs.erofs ended with exit code 3: '<E> erofs: no space'");
  }
}

TEST_CASE("versions of mkfs.erofs that cannot be used are refused with what to do", "[layers][erofs]") {
  CHECK(fitness_of_mkfs("1.5") == MkfsFitness::Unusable);
  CHECK(fitness_of_mkfs("1.8.7") == MkfsFitness::Unusable);
  CHECK(fitness_of_mkfs("1.8.8") == MkfsFitness::Unusable);
  CHECK(fitness_of_mkfs("1.8.10") == MkfsFitness::Old);
  CHECK(fitness_of_mkfs("1.9.2") == MkfsFitness::Old);
  CHECK(fitness_of_mkfs("1.9.3") == MkfsFitness::Good);
  CHECK(fitness_of_mkfs("1.10") == MkfsFitness::Good);

  const TempDirectory work(fs::temp_directory_path());
  write_file_atomic(work.path() / "mkfs", "#!/bin/sh\necho 'mkfs.erofs 1.5'\nexit 1\n", 0755);
  const char* before = std::getenv("DSEC_MKFS_EROFS");
  const std::string kept = before ? before : "";
  ::setenv("DSEC_MKFS_EROFS", (work.path() / "mkfs").c_str(), 1);
  std::string message, hint;
  try {
    Mkfs::find();
  } catch (const Error& error) {
    message = error.message();
    hint = error.hints().empty() ? "" : error.hints()[0];
  }
  if (before)
    ::setenv("DSEC_MKFS_EROFS", kept.c_str(), 1);
  else
    ::unsetenv("DSEC_MKFS_EROFS");
  CHECK(message.find("is version 1.5, which cannot read tar archives") != std::string::npos);
  CHECK(hint.find("./dev build") != std::string::npos);
}
