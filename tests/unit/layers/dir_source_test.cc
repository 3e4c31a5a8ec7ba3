#include "layers/dir/dir_source.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/files.h"
#include "layers/dir/upper_source.h"
#include "tests/unit/layers/tree_on_disk.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct Read {
  SourceFacts facts;
  RecordedTree tree;
};

Read read(std::unique_ptr<Source> source, const SourceOptions& options = {}) {
  Progress silent;
  Read result{source->examine(options, silent), {}};
  source->emit(0, result.tree);
  result.tree.finish();
  return result;
}

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

void write(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

void set_attribute(const fs::path& path, const char* name, std::string_view value) {
  REQUIRE(::lsetxattr(path.c_str(), name, value.data(), value.size(), 0) == 0);
}

void make_whiteout(const fs::path& path) { REQUIRE(::mknod(path.c_str(), S_IFCHR, makedev(0, 0)) == 0); }

TEST_CASE("a folder's tree is kept as it is", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path root = scratch.path() / "r";
  write(root / "bin/tool", "#!/bin/sh\n");
  ::chmod((root / "bin/tool").c_str(), 04755);
  fs::create_hard_link(root / "bin/tool", root / "bin/alias");
  fs::create_symlink("../escape", root / "link");
  ::mkfifo((root / "pipe").c_str(), 0600);
  ::chmod((root / "pipe").c_str(), 0620);
  set_attribute(root / "bin/tool", "user.note", std::string("a\0b", 3));
  set_attribute(root / "bin", "user.overlay.opaque", "y");
  const timespec times[2] = {{-5, 250}, {-5, 250}};
  ::utimensat(AT_FDCWD, (root / "link").c_str(), times, AT_SYMLINK_NOFOLLOW);
  const int hole = ::open((root / "sparse").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  REQUIRE(::ftruncate(hole, 5 << 20) == 0);
  REQUIRE(::pwrite(hole, "mid", 3, 3 << 20) == 3);
  ::close(hole);

  const Read got = read(open_dir_source({.folder = root, .owner = DirOwner::Keep}));
  const auto& items = got.tree.items;
  CHECK(items.at("bin/alias").entry.mode == 04755);
  CHECK(items.at("bin/alias").bytes == "#!/bin/sh\n");
  CHECK(items.at("bin/tool").entry.type == EntryType::HardLink);
  CHECK(items.at("bin/tool").entry.target == "bin/alias");
  CHECK(items.at("bin/alias").entry.xattrs ==
        std::map<std::string, std::string>{{"user.note", std::string("a\0b", 3)}});
  CHECK(items.at("bin").entry.xattrs.empty());
  CHECK(items.at("link").entry.target == "../escape");
  CHECK(items.at("link").entry.mtime == Timestamp{-5, 250});
  CHECK(items.at("pipe").entry.type == EntryType::Fifo);
  CHECK(items.at("pipe").entry.mode == 0620);
  CHECK(items.at("sparse").bytes.size() == 5 << 20);
  CHECK(items.at("sparse").bytes.find("mid") == 3 << 20);
  CHECK(items.at("sparse").entry.uid == ::getuid());
  CHECK(got.facts.provenance.source == "dir");

  const Read owned = read(open_dir_source(DirRequest::parse(root.native() + "?owner=root&mtime=7")));
  for (const auto& [path, item] : owned.tree.items) {
    CHECK(item.entry.uid == 0);
    CHECK(item.entry.mtime == Timestamp{7, 0});
  }
}

TEST_CASE("equal folders have one identity, wherever they lie", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  const auto make = [&](const char* name, const std::string& content) {
    const mode_t old = ::umask(name[0] == 'a' ? 022 : 077);
    const fs::path root = scratch.path() / name / "tree";
    write(root / "d/f", content);
    for (const char* path : {".", "d", "d/f"}) {
      const timespec times[2] = {{100, 5}, {100, 5}};
      ::chmod((root / path).c_str(), path[1] == '/' ? 0640 : 0755);
      ::utimensat(AT_FDCWD, (root / path).c_str(), times, 0);
    }
    ::umask(old);
    return read(open_dir_source({.folder = root}));
  };
  const Read a = make("a", "same"), b = make("b", "same"), c = make("c", "differ");
  CHECK(a.facts.identity == b.facts.identity);
  CHECK(a.tree.text() == b.tree.text());
  CHECK(a.facts.provenance == b.facts.provenance);
  CHECK(a.facts.identity != c.facts.identity);
}

TEST_CASE(".dsecignore leaves things out, itself among them", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path root = scratch.path();
  write(root / ".dsecignore", "*.log\n!keep.log\n/secret\nnode_modules/\n");
  for (const char* path : {"a.log", "keep.log", "secret/x", "sub/secret", "sub/node_modules/y", "node_modules"})
    write(root / path, "x");
  const Read got = read(open_dir_source({.folder = root}));
  std::string names;
  for (const auto& [path, item] : got.tree.items) names += path + " ";
  CHECK(names == " keep.log node_modules sub sub/secret ");
  fs::remove(root / ".dsecignore");
  ::mkfifo((root / ".dsecignore").c_str(), 0600);
  CHECK_THAT(failure_of([&] { read(open_dir_source({.folder = root})); }), Contains("is no regular file"));
}

TEST_CASE("a folder that changes while it is read is refused by name", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path root = scratch.path();
  write(root / "a", "a");
  write(root / "z", "z");
  Progress silent;
  const auto between = [&](const std::function<void()>& change) {
    const auto source = open_dir_source({.folder = root});
    source->examine({}, silent);
    change();
    RecordedTree tree;
    return failure_of([&] { source->emit(0, tree); });
  };
  CHECK(between([] {}) == "");
  CHECK_THAT(between([&] { write(root / "z", "y"); }), Contains("'z' changed while it was read"));
  CHECK_THAT(between([&] { write(root / "new", "n"); }), Contains("changed while it was read"));
  CHECK_THAT(between([&] {
               fs::remove(root / "z");
               ::mkfifo((root / "z").c_str(), 0600);
             }),
             Contains("changed while it was read"));
  CHECK_THAT(between([&] { fs::remove(root / "z"); }), Contains("while it was read"));

  // A writer that is at it right then: the file grows between two pieces.
  write(root / "big", std::string(3 << 20, 'x'));
  struct Meddler : RecordedTree {
    fs::path file;
    void data(std::string_view bytes) override {
      RecordedTree::data(bytes);
      std::ofstream(file, std::ios::app) << "more";
    }
  } meddler;
  meddler.file = root / "big";
  const auto source = open_dir_source({.folder = root});
  source->examine({}, silent);
  CHECK_THAT(failure_of([&] { source->emit(0, meddler); }), Contains("changed while it was read"));
}

TEST_CASE("limits, sockets and wrong options of a folder are told", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path root = scratch.path();
  write(root / "d/file", std::string(100, 'x'));
  const auto with = [&](const InputLimits& limits) {
    return failure_of([&] { read(open_dir_source({.folder = root}), {.limits = limits}); });
  };
  CHECK_THAT(with({.unpacked_bytes = 99}), Contains("more than 99 bytes (at 'd/file')"));
  CHECK_THAT(with({.entries = 2}), Contains("more than 2 entries (at 'd/file')"));
  CHECK_THAT(with({.path_bytes = 5}), Contains("longer than 5 bytes"));
  CHECK_THAT(failure_of([&] { open_dir_source({.folder = root / "none"}); }),
             Contains("No such file or directory (ENOENT)"));
  CHECK_THAT(failure_of([&] { open_dir_source({.folder = root / "d/file"}); }), Contains("Not a directory (ENOTDIR)"));
  CHECK_THAT(failure_of([&] { DirRequest::parse("/x?owner=me"); }), Contains("has no option 'owner=me'"));
  CHECK_THAT(failure_of([&] { DirRequest::parse("/x?mtime=now"); }), Contains("not 'now'"));

  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (root / "sock").native().copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const Read got = read(open_dir_source({.folder = root}));
  CHECK_FALSE(got.tree.items.contains("sock"));
  REQUIRE(got.facts.warnings.size() == 1);
  CHECK_THAT(got.facts.warnings[0], Contains("'sock'"));
  make_whiteout(root / "gone");
  CHECK_THAT(failure_of([&] { read(open_dir_source({.folder = root})); }), Contains("'gone' has the numbers 0:0"));
}

TEST_CASE("a writable layer becomes a tree with its deletions", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path upper = scratch.path() / "upper", lower = scratch.path() / "lower";
  write(lower / "etc/deleted", "x");
  write(lower / "etc/old/inner", "x");
  write(lower / "replaced/x", "x");
  write(upper / "etc/new", "n");
  make_whiteout(upper / "etc/deleted");
  make_whiteout(upper / "etc/never-below");
  write(upper / "etc/xattr-gone", "");
  write(lower / "etc/xattr-gone", "x");
  set_attribute(upper / "etc/xattr-gone", "user.overlay.whiteout", "");
  set_attribute(upper / "etc", "user.overlay.opaque", "x");
  set_attribute(upper / "etc", "user.overlay.origin", "handle");
  write(upper / "replaced/y", "y");
  make_whiteout(upper / "replaced/x");
  set_attribute(upper / "replaced", "user.overlay.opaque", "y");
  write(upper / "fresh/z", "z");
  set_attribute(upper / "fresh", "user.overlay.opaque", "y");
  set_attribute(upper / "fresh/z", "user.kept", "1");

  const Read got = read(open_upper_source({.upper = upper, .lower = lower}));
  const auto& items = got.tree.items;
  for (const char* path : {"etc/deleted", "etc/xattr-gone"}) {
    CHECK(items.at(path).entry.type == EntryType::CharDevice);
    CHECK(items.at(path).entry.major + items.at(path).entry.minor == 0);
  }
  CHECK_FALSE(items.contains("etc/never-below"));
  CHECK(items.at("etc").entry.xattrs.empty());
  CHECK(items.at("replaced").entry.xattrs == std::map<std::string, std::string>{{"trusted.overlay.opaque", "y"}});
  CHECK_FALSE(items.contains("replaced/x"));
  CHECK(items.at("fresh").entry.xattrs.empty());
  CHECK(items.at("fresh/z").entry.xattrs == std::map<std::string, std::string>{{"user.kept", "1"}});

  const Read alone = read(open_upper_source({.upper = upper}));
  CHECK(alone.tree.items.contains("etc/never-below"));
  CHECK(alone.tree.items.at("fresh").entry.xattrs.contains("trusted.overlay.opaque"));

  for (const char* name : {"user.overlay.redirect", "user.overlay.metacopy"}) {
    set_attribute(upper / "fresh/z", name, "/elsewhere");
    CHECK_THAT(failure_of([&] { read(open_upper_source({.upper = upper})); }),
               Contains("'fresh/z' has the overlay attribute"));
    ::lremovexattr((upper / "fresh/z").c_str(), name);
  }
}

TEST_CASE("residue stays out of a writable layer's tree, what is kept by name does not", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path upper = scratch.path();
  for (const char* path : {"tmp/a", "tmp/wheels/deep/w.whl", "tmp/wheels2/no", "var/log/nginx/access.log",
                           "root/.bash_history", "usr/bin/x", "tmp/b/c/other"})
    write(upper / path, "x");
  make_whiteout(upper / "var/log/dpkg.log");
  const Read got =
      read(open_upper_source({.upper = upper, .scrub = Scrub::standard({"/usr/bin/nothing"}, {"/tmp/wheels/deep"})}));
  std::string names;
  for (const auto& [path, item] : got.tree.items) names += path + " ";
  CHECK(names ==
        " root tmp tmp/wheels tmp/wheels/deep tmp/wheels/deep/w.whl usr usr/bin usr/bin/x var var/log var/log/dpkg.log "
        "var/log/nginx ");
  const Read all = read(open_upper_source({.upper = upper}));
  CHECK(all.tree.items.contains("tmp/b/c/other"));
  CHECK(all.facts.provenance.options != got.facts.provenance.options);
}

TEST_CASE("ids of a writable layer are taken back to what they are inside", "[layers][dir]") {
  TempDirectory scratch(fs::temp_directory_path());
  write(scratch.path() / "f", "x");
  const std::uint32_t me = ::getuid(), group = ::getgid();
  const Read got = read(open_upper_source(
      {.upper = scratch.path(),
       .ids = {{.inside = 5, .outside = me, .count = 1}, {.inside = 6, .outside = group + 1, .count = 9}}}));
  CHECK(got.tree.items.at("f").entry.uid == 5);
  CHECK_THAT(
      failure_of([&] {
        read(open_upper_source({.upper = scratch.path(), .ids = {{.inside = 0, .outside = me + 1000, .count = 1}}}));
      }),
      Contains("outside of the sandbox's ids"));
}

}  // namespace
}  // namespace dsec::layers
