#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/build/base_images.h"
#include "layers/build/build_secret.h"
#include "layers/build/cache_mounts.h"
#include "layers/build/run_mounts.h"
#include "layers/build/secret_mask.h"
#include "layers/build/step_mounts.h"
#include "layers/dir/tree_writer.h"
#include "layers/dockerfile/file_digests.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using dockerfile::FileDigests;
using dockerfile::RunMount;

std::string problem(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "none";
}

/// Keeps the paths of what arrives.
struct Paths final : TreeSink {
  std::vector<std::string> paths;
  void entry(const Entry& entry) override { paths.push_back(entry.path); }
  void data(std::string_view) override {}
};

/// A tree of folders that root owns.
struct Folders final : dockerfile::CopyOrigin {
  std::set<std::string> paths;
  std::optional<Entry> find(const std::string& path) override {
    if (!path.empty() && !paths.contains(path)) return std::nullopt;
    return Entry{.path = path, .type = EntryType::Directory, .mode = 0755};
  }
  std::vector<std::string> names(const std::string&) override { return {}; }
  void content(const std::string&, const std::function<void(std::string_view)>&) override {}
  int ignored(const std::string&) const override { return 0; }
  bool has_exceptions() const override { return false; }
};

std::vector<std::string> left(const std::set<std::string>& points, const std::vector<Entry>& tree) {
  Folders below;
  below.paths = {"root", "var"};
  Paths paths;
  WithoutMountPoints without(paths, points, below);
  for (const Entry& entry : tree) without.entry(entry);
  return paths.paths;
}

}  // namespace

TEST_CASE("names of images are those that docker knows, and have layers here", "[layers][dockerfile]") {
  const auto [text, image, layer] = GENERATE(table<std::string, std::string, std::string>({
      {"python", "docker.io/library/python:latest", "base/python:latest"},
      {"python:3.11-slim", "docker.io/library/python:3.11-slim", "base/python:3.11-slim"},
      {"docker.io/python:3", "docker.io/library/python:3", "base/python:3"},
      {"index.docker.io/library/python:3", "docker.io/library/python:3", "base/python:3"},
      {"team/tool:1", "docker.io/team/tool:1", "base/team/tool:1"},
      {"ghcr.io/a/b", "ghcr.io/a/b:latest", "base/ghcr.io/a/b:latest"},
      {"localhost:5000/a:1", "localhost:5000/a:1", "base/localhost__5000/a:1"},
      {"localhost/a:1", "localhost/a:1", "base/localhost/a:1"},
  }));
  CHECK(ImageName::parse(text).str() == image);
  CHECK(ImageName::parse(text).layer().str() == layer);
  const std::string digest = "sha256:" + std::string(64, 'b');
  CHECK(ImageName::parse("python:3@" + digest).str() == "docker.io/library/python@" + digest);
  CHECK(named_layer_ref("base/debian:12")->str() == "base/debian:12");
  CHECK_FALSE(named_layer_ref("python:3"));
  CHECK_FALSE(named_layer_ref("team/tool"));
  CHECK(problem([] { ImageName::parse("a@md5:12"); }) == "'md5:12' is no sha256 digest");
  CHECK(problem([] { ImageName::parse("a:b c"); }) == "'b c' is no tag");
}

TEST_CASE("secrets are files or variables", "[layers][dockerfile]") {
  CHECK(BuildSecret::parse("id=a,src=/f").second.file == "/f");
  CHECK(BuildSecret::parse("type=env,id=a,env=B").second.variable == "B");
  CHECK(BuildSecret::parse("id=a").second.variable == "a");
  CHECK(problem([] { BuildSecret::parse("src=/f"); }) == "--secret 'src=/f': it has no id");
  CHECK(problem([] { BuildSecret::parse("id=a,src=b,env=c"); }) ==
        "--secret 'id=a,src=b,env=c': it is a file or a variable, not both");
  CHECK(problem([] { BuildSecret::parse("id=a,x=b"); }) == "--secret 'id=a,x=b': there is no 'x'");
  CHECK(problem([] {
          (void)BuildSecret{{}, "DSEC_TEST_NOT_SET"}.value();
        }) == "the variable DSEC_TEST_NOT_SET of this environment is not set");
}

TEST_CASE("secrets are masked", "[layers][dockerfile]") {
  const auto masked = [](const std::vector<std::string>& secrets, std::string text) {
    return SecretMask(secrets).take(text, text.size());
  };
  CHECK(masked({"******"}, "a ****** b\n") == "a ******** b\n");
  CHECK(masked({"secret", "secret-and-more"}, "secret-and-more secret-and\n") == "******** ********-and\n");
  CHECK(masked({"line one\r\nline two\r\n"}, "line one, line two\r\n") == "********, ********\r\n");
  CHECK(masked({"short"}, "short") == "short");
  CHECK(masked({}, "text") == "text");
  // A secret that begins before a cut is taken whole.
  std::string text = "0123secret89";
  const SecretMask mask(std::vector<std::string>{"secret"});
  CHECK(mask.take(text, 5) == "0123********");
  CHECK(text == "89");
  CHECK(mask.longest() == 6);
}

TEST_CASE("secrets of builds that were killed are removed, and no others", "[layers][dockerfile]") {
  const TempDirectory scratch(fs::temp_directory_path());
  const fs::path stale = scratch.path() / ".tmp-999999999-1-abcdef", file = scratch.path() / ".tmp-999999999-1-ghijkl";
  fs::create_directory(stale);
  std::ofstream(stale / "0") << "secret";
  std::ofstream(file) << "x";
  const TempDirectory live(scratch.path());
  remove_stale_secrets(scratch.path());
  CHECK_FALSE(fs::exists(stale));
  CHECK(fs::exists(file));
  CHECK(fs::exists(live.path()));
}

TEST_CASE("mount points that were not there are not there afterwards", "[layers][dockerfile]") {
  const auto folder = [](const std::string& path, std::uint32_t mode = 0755) {
    return Entry{.path = path, .type = EntryType::Directory, .mode = mode};
  };
  const auto file = [](const std::string& path) { return Entry{.path = path, .type = EntryType::File, .mode = 0644}; };
  using Names = std::vector<std::string>;
  const std::set<std::string> points = {"root/.cache/pip", "opt/a/b", "opt/file"};
  CHECK(left(points, {folder("opt"), folder("opt/a"), folder("opt/a/b"), file("opt/file"), folder("root"),
                      folder("root/.cache"), folder("root/.cache/pip"), folder("var"), file("var/x")}) ==
        Names{"var", "var/x"});
  // What the command made beside them, and what it changed, stays.
  CHECK(left(points, {folder("opt"), folder("opt/a"), folder("opt/a/b"), file("opt/a/c"), folder("opt/z")}) ==
        Names{"opt", "opt/a", "opt/a/c", "opt/z"});
  CHECK(left(points, {folder("root", 0700), folder("root/.cache"), folder("root/.cache/pip")}) == Names{"root"});
  CHECK(left(points, {folder("root"), folder("root/.cachet"), file("root/.profile")}) ==
        Names{"root", "root/.cachet", "root/.profile"});
}

TEST_CASE("files that did not change are not read again", "[layers][dockerfile]") {
  const TempDirectory scratch(fs::temp_directory_path());
  const fs::path kept = scratch.path() / "cache/kept";
  struct stat info {};
  info.st_dev = 1, info.st_ino = 2, info.st_size = 3;
  info.st_mtim = info.st_ctim = {1600000000, 5};
  const Digest digest = Digest::of("x");
  {
    FileDigests digests(kept);
    CHECK_FALSE(digests.find("a b", info));
    digests.put("a b", info, digest);
    struct stat fresh = info;
    fresh.st_ctim.tv_sec = std::time(nullptr);
    digests.put("fresh", fresh, digest);
    CHECK_FALSE(digests.find("fresh", fresh));
    digests.save();
  }
  FileDigests digests(kept);
  CHECK(digests.find("a b", info) == digest);
  struct stat other = info;
  other.st_ctim.tv_nsec = 6;
  CHECK_FALSE(digests.find("a b", other));
  std::ofstream(kept) << "something else\n";
  CHECK_FALSE(FileDigests(kept).find("a b", info));
}

TEST_CASE("a tree is written below its folder and nowhere else", "[layers][dir]") {
  const TempDirectory scratch(fs::temp_directory_path());
  const fs::path folder = scratch.path() / "tree", outside = scratch.path() / "outside";
  fs::create_directory(folder);
  fs::create_directory(outside);
  const std::uint32_t uid = ::getuid(), gid = ::getgid();
  const auto owned = [&](Entry entry) {
    entry.uid = uid, entry.gid = gid, entry.mtime = {1600000000, 7};
    return entry;
  };
  TreeWriter writer(folder);
  writer.entry(owned({.path = "d", .type = EntryType::Directory, .mode = 0555}));
  writer.entry(owned({.path = "d/f", .type = EntryType::File, .mode = 0640, .size = 4}));
  writer.data("da");
  writer.data("ta");
  writer.entry(owned({.path = "d/h", .type = EntryType::HardLink, .target = "d/f"}));
  writer.entry(owned({.path = "implied/p", .type = EntryType::Fifo, .mode = 0600}));
  writer.entry(owned({.path = "s", .type = EntryType::Symlink, .mode = 0777, .target = outside.native()}));
  CHECK_THROWS_AS(writer.entry(owned({.path = "s/x", .type = EntryType::File, .mode = 0644})), Error);
  CHECK_THROWS_AS(writer.entry(owned({.path = "d", .type = EntryType::Directory, .mode = 0755})), Error);
  writer.finish();
  CHECK(fs::is_empty(outside));
  CHECK(read_file(folder / "d/f") == "data");
  struct stat info {};
  REQUIRE(::stat((folder / "d").c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0555);
  CHECK(info.st_mtim.tv_sec == 1600000000);
  REQUIRE(::stat((folder / "d/h").c_str(), &info) == 0);
  CHECK(info.st_nlink == 2);
  CHECK((info.st_mode & 07777) == 0640);
  CHECK(fs::is_fifo(folder / "implied/p"));
  ::chmod((folder / "d").c_str(), 0755);
}

TEST_CASE("private caches are others while one is in use", "[layers][dockerfile]") {
  const TempDirectory scratch(fs::temp_directory_path());
  CacheMounts caches(scratch.path() / "mounts");
  RunMount mount{.kind = RunMount::Kind::Cache, .id = "x", .sharing = RunMount::Sharing::Private};
  mount.uid = ::getuid(), mount.gid = ::getgid(), mount.mode = 0711;
  fs::path first;
  {
    const CacheMounts::Held held = caches.hold(mount);
    first = held.folder;
    CHECK((fs::status(first).permissions() & fs::perms::mask) == fs::perms(0711));
    CHECK(caches.hold(mount).folder != first);
    // What is in use stays, whatever is asked for.
    std::vector<std::string> problems;
    CHECK(caches
              .prune(
                  true, false, [](const fs::path&) { return 7u; }, problems)
              .size() == 1);
    CHECK(fs::exists(first));
  }
  CHECK(caches.hold(mount).folder == first);
  std::vector<std::string> problems;
  CHECK(caches
            .prune(
                false, false, [](const fs::path&) { return 7u; }, problems)
            .empty());
  const auto pruned = caches.prune(
      true, false, [](const fs::path&) { return 7u; }, problems);
  REQUIRE(pruned.size() == 1);
  CHECK(pruned[0].id == "x");
  CHECK(pruned[0].bytes == 7);
  CHECK_FALSE(fs::exists(first));
  CHECK(problems.empty());
}

TEST_CASE("gc takes no cache away from a build that has it", "[layers][dockerfile]") {
  const TempDirectory scratch(fs::temp_directory_path());
  CacheMounts caches(scratch.path() / "mounts");
  const auto prune = [&] {
    std::vector<std::string> problems;
    return caches.prune(
        true, false, [](const fs::path&) { return 1u; }, problems);
  };
  RunMount mount{.kind = RunMount::Kind::Cache, .id = "x"};
  mount.uid = ::getuid(), mount.gid = ::getgid();
  std::atomic<bool> done = false;
  int lost = 0;
  std::thread build([&] {
    for (int i = 0; i < 100; ++i) {
      // So that it comes at all moments of a gc.
      std::this_thread::sleep_for(std::chrono::microseconds(10 * i));
      try {
        const CacheMounts::Held held = caches.hold(mount);
        for (int file = 0; file < 50; ++file) std::ofstream(held.folder / std::to_string(file)) << "x";
        for (int file = 0; file < 50; ++file) lost += !fs::exists(held.folder / std::to_string(file));
      } catch (const Error&) {
        ++lost;
      }
    }
    done = true;
  });
  while (!done) prune();
  build.join();
  CHECK(lost == 0);
  // What a gc left that was killed goes too, and is no cache.
  fs::create_directories(scratch.path() / "mounts/.gone-1/data");
  prune();
  CHECK(prune().empty());
  CHECK(fs::is_empty(scratch.path() / "mounts"));
}

}  // namespace dsec::layers
