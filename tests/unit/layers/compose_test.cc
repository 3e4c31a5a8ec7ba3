#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "layers/compose/conflicts.h"
#include "layers/compose/directory_image.h"
#include "layers/compose/export_layer.h"
#include "layers/compose/fixup.h"
#include "layers/compose/foreign_check.h"
#include "layers/compose/layer_diff.h"
#include "layers/compose/listing.h"
#include "layers/compose/stack_record.h"
#include "layers/erofs_read/erofs_image.h"
#include "tests/support/test_images.h"

using namespace dsec;
using namespace dsec::testing;
using namespace dsec::layers;
namespace fs = std::filesystem;

namespace {

using Stack = std::vector<engine::StoredLayer>;

struct Blobs {
  TempDirectory directory{fs::temp_directory_path()};
  ImageStore store{directory.path() / "blobs"};
};

std::vector<std::string> listed(Blobs& blobs, const Stack& stack) {
  std::vector<std::string> lines;
  list_files(blobs.store, stack, [&](const ListedFile& file) {
    lines.push_back(file.entry.path + " " + file.uses + (file.entry.type == EntryType::CharDevice ? " deleted" : ""));
  });
  return lines;
}

std::vector<std::string> conflict_lines(Blobs& blobs, const Stack& stack) {
  std::vector<std::string> lines;
  for (const auto& c : find_conflicts(blobs.store, stack))
    lines.push_back(c.path + ": " + c.upper + " has " + c.what + " of " + c.lower);
  return lines;
}

std::vector<std::string> difference_lines(Blobs& blobs, const engine::StoredLayer& from,
                                          const engine::StoredLayer& to) {
  std::vector<std::string> lines;
  diff_layers(blobs.store, from, to, [&](const LayerDifference& difference) {
    std::string line = std::string(1, "AMD"[static_cast<int>(difference.kind) == 0              ? 0
                                            : difference.kind == LayerDifference::Kind::Deleted ? 2
                                                                                                : 1]);
    line += " " + difference.path;
    for (const std::string& reason : difference.reasons) line += " " + reason;
    lines.push_back(line);
  });
  return lines;
}

}  // namespace

TEST_CASE("a composed listing names the layer of each file and shows deletions", "[layers][compose]") {
  Blobs blobs;
  const auto base =
      blobs.store.add_layer("base/b", {{dir("etc"), file("etc/a"), file("etc/b"), dir("old"), file("old/x")}});
  const auto work = blobs.store.add_layer(
      "workspace/w", {{dir("etc"), file("etc/b", "new"), whiteout("etc/a"), opaque_dir("old"), file("old/y")}});
  CHECK(listed(blobs, {base, work}) == std::vector<std::string>{" workspace/w", "etc workspace/w",
                                                                "etc/a workspace/w deleted", "etc/b workspace/w",
                                                                "old workspace/w", "old/y workspace/w"});
  CHECK(listed(blobs, {base}).size() == 6);
}

TEST_CASE("images of one layer are merged like layers", "[layers][compose]") {
  Blobs blobs;
  const auto layer = blobs.store.add_layer("base/b", {{dir("d"), file("d/one")}, {dir("d"), file("d/two")}});
  CHECK(listed(blobs, {layer}) == std::vector<std::string>{" base/b", "d base/b", "d/one base/b", "d/two base/b"});
}

TEST_CASE("a directory over a symlink and a file over a directory are conflicts that name both layers",
          "[layers][compose]") {
  Blobs blobs;
  const auto base = blobs.store.add_layer(
      "base/b", {{dir("usr"), dir("usr/bin"), link_to("bin", "usr/bin"), dir("opt"), file("same")}});
  const auto tool =
      blobs.store.add_layer("toolkit/t", {{dir("bin"), file("bin/tool"), file("opt", "x"), file("same", "y")}});
  CHECK(conflict_lines(blobs, {base, tool}) ==
        std::vector<std::string>{"bin: toolkit/t has a directory over a symlink of base/b",
                                 "opt: toolkit/t has a file over a directory of base/b"});
}

TEST_CASE("deletions, opaque directories and layers built on one another are no conflicts", "[layers][compose]") {
  Blobs blobs;
  const auto base = blobs.store.add_layer("base/b", {{link_to("l", "x"), dir("d"), file("d/f")}});
  CHECK(
      conflict_lines(blobs, {base, blobs.store.add_layer("workspace/w", {{opaque_dir("l"), whiteout("d")}})}).empty());
  auto built = blobs.store.add_layer("workspace/w", {{dir("l"), file("d")}});
  CHECK(conflict_lines(blobs, {base, built}).size() == 2);
  built.manifest.provenance.built_on = base.digest;
  CHECK(conflict_lines(blobs, {base, built}).empty());
  const auto snapshot = blobs.store.add_layer("snapshot/s", {{dir("l"), file("d")}});
  CHECK(conflict_lines(blobs, {base, snapshot}).empty());
  CHECK(conflict_lines(blobs, {blobs.store.add_layer("base/two", {{link_to("l", "x")}, {dir("l")}})}).empty());
}

TEST_CASE("a layer between two others decides what is hidden", "[layers][compose]") {
  Blobs blobs;
  const auto base = blobs.store.add_layer(
      "base/b", {{dir("d"), file("d/f"), file("g"), dir("gone"), file("gone/a"), file("gone/b")}});
  const auto work = blobs.store.add_layer("workspace/w", {{dir("d"), file("d/f", "2"), whiteout("gone")}});
  const auto tool = blobs.store.add_layer("toolkit/t", {{dir("d"), file("d/f", "3"), whiteout("g")}});
  std::vector<std::string> lines;
  for (const auto& h : find_hidden_files(blobs.store, Stack{base, work, tool}, 100))
    lines.push_back(h.path + " " + h.lower + " " + h.upper + (h.deleted ? " deleted" : " replaced"));
  CHECK(lines == std::vector<std::string>{"d/f workspace/w toolkit/t replaced", "g base/b toolkit/t deleted",
                                          "gone base/b workspace/w deleted"});
  CHECK(find_hidden_files(blobs.store, Stack{base, work, tool}, 1).size() == 1);
}

TEST_CASE("implicit parents get the attributes of the topmost layer that has them explicitly", "[layers][compose]") {
  Blobs blobs;
  const auto base = blobs.store.add_layer("base/b", {{dir("home", 0711),
                                                      {.path = "home/user",
                                                       .type = '5',
                                                       .mode = 0700,
                                                       .uid = 1000,
                                                       .gid = 100,
                                                       .mtime = 5,
                                                       .xattrs = {{"user.k", "v"}}},
                                                      dir("tmp", 01777),
                                                      dir("opt")}});
  const auto work = blobs.store.add_layer(
      "workspace/w", {{dir("home"), dir("home/user"), file("home/user/f"), dir("opt", 0750)}}, {"home", "home/user"});
  const auto tool = blobs.store.add_layer(
      "toolkit/t", {{dir("tmp"), file("tmp/t"), dir("opt"), dir("new"), file("new/f")}}, {"", "tmp", "opt", "new"});
  const auto fixups = find_fixups(blobs.store, Stack{base, work, tool});
  std::vector<std::string> paths;
  for (const auto& [path, entry] : fixups) paths.push_back(path);
  CHECK(paths == std::vector<std::string>{"", "home", "home/user", "opt", "tmp"});
  CHECK(fixups.at("home").mode == 0711);
  CHECK(fixups.at("home/user").mode == 0700);
  CHECK(fixups.at("home/user").uid == 1000);
  CHECK(fixups.at("home/user").mtime.seconds == 5);
  CHECK(fixups.at("home/user").xattrs == std::map<std::string, std::string>{{"user.k", "v"}});
  CHECK(fixups.at("tmp").mode == 01777);
  CHECK(fixups.at("opt").mode == 0750);
  CHECK(find_fixups(blobs.store, Stack{base}).empty());
  CHECK(find_fixups(blobs.store, Stack{base, blobs.store.add_layer("workspace/x", {{dir("home", 0700)}})}).empty());
}

TEST_CASE("an image of directories reads back with all attributes and passes fsck.erofs", "[layers][compose]") {
  Blobs blobs;
  std::map<std::string, Entry> directories;
  const auto add = [&](const std::string& path, std::uint32_t mode) {
    directories[path] = {
        .path = path, .type = EntryType::Directory, .mode = mode, .uid = 70000, .gid = 7, .mtime = {-5, 123}};
  };
  add("", 0755);
  add("-before-dot", 0700);
  add("many", 01777);
  for (int i = 0; i < 500; ++i) add("many/a-directory-with-a-long-name-" + std::to_string(i), 0711);
  directories["many"].xattrs = {
      {"user.key", "value"}, {"system.posix_acl_default", std::string(28, '\1')}, {"user.big", std::string(5000, 'x')}};
  const std::string bytes = make_directory_image(directories);
  CHECK(bytes == make_directory_image(directories));
  const fs::path path = blobs.directory.path() / "image";
  write_file_atomic(path, bytes);

  ErofsImage image(open_file(path, O_RDONLY), UniqueFd(), "'image'");
  std::size_t seen = 0;
  walk(image, [&](const std::string& at, const ErofsInode& inode) {
    ++seen;
    const Entry entry = to_entry(image, at, inode);
    CHECK(entry.mode == directories.at(at).mode);
    CHECK(entry.uid == 70000);
    CHECK(entry.mtime == Timestamp{-5, 123});
    CHECK(entry.xattrs == directories.at(at).xattrs);
  });
  CHECK(seen == directories.size());
  const fs::path fsck = fs::path(mkfs_program()).parent_path() / "fsck.erofs";
  const CommandResult checked = run_command({.argv = {fs::exists(fsck) ? fsck.native() : "fsck.erofs", path.native()}});
  INFO(checked.out << checked.err);
  CHECK(checked.status.ok());
}

TEST_CASE("a difference between layers is told with its reasons", "[layers][compose]") {
  Blobs blobs;
  const auto from = blobs.store.add_layer("base/b", {{dir("d"),
                                                      file("d/same", "1"),
                                                      file("d/content", "aaaa"),
                                                      file("d/size", "1"),
                                                      file("d/mode"),
                                                      link_to("d/link", "a"),
                                                      file("d/type"),
                                                      dir("gone"),
                                                      file("gone/f"),
                                                      {.path = "d/x", .mode = 0644, .xattrs = {{"user.a", "1"}}}}});
  const auto to = blobs.store.add_layer("base/b", {{dir("d"),
                                                    file("d/same", "1"),
                                                    file("d/content", "aaab"),
                                                    file("d/size", "22"),
                                                    file("d/mode", "", 0755),
                                                    link_to("d/link", "b"),
                                                    dir("d/type"),
                                                    dir("new"),
                                                    file("new/f"),
                                                    {.path = "d/x", .mode = 0644, .uid = 4, .mtime = 3}}});
  CHECK(difference_lines(blobs, from, to) == std::vector<std::string>{"M d/content content", "M d/link target",
                                                                      "M d/mode mode", "M d/size size",
                                                                      "M d/type type mode", "M d/x owner xattrs time",
                                                                      "D gone", "D gone/f", "A new", "A new/f"});
  CHECK(difference_lines(blobs, from, from).empty());
}

TEST_CASE("an exported layer unpacks to the same tree, deletions in OCI form", "[layers][compose]") {
  Blobs blobs;
  const auto layer = blobs.store.add_layer(
      "base/b",
      {{dir("d", 01777),
        file("d/f", std::string(300000, 'x')),
        {.path = "d/again", .type = '1', .content = "d/f"},
        link_to("d/l", "f"),
        file("\xff-bytes", "b"),
        file("\xc3\xa9", "e"),
        whiteout("d/gone"),
        opaque_dir("o"),
        file(std::string(200, 'n'), "long"),
        file("sparse", std::string(1 << 20, '\0') + "end"),
        file("zeros", std::string(1 << 20, '\0')),
        {.path = "x", .content = "1", .mode = 04755, .uid = 70000, .mtime = 3, .xattrs = {{"user.k", "v"}}}}});
  const fs::path tar = blobs.directory.path() / "out.tar";
  Progress quiet;
  const auto exported = [&] {
    const UniqueFd out = open_file(tar, O_WRONLY | O_CREAT | O_TRUNC);
    const std::uint64_t written = export_layer(blobs.store, layer, out.get(), quiet);
    CHECK(written == fs::file_size(tar));
    return read_file(tar);
  };
  const std::string bytes = exported();
  CHECK(bytes == exported());
  CHECK(bytes.size() < 500000);
  const fs::path tree = blobs.directory.path() / "tree";
  make_directories(tree);
  const CommandResult unpacked =
      run_command({.argv = {"tar", "-C", tree.native(), "--no-same-owner", "--xattrs", "-xpf", tar.native()}});
  INFO(unpacked.err);
  REQUIRE(unpacked.status.ok());
  CHECK(read_file(tree / "d/f") == std::string(300000, 'x'));
  CHECK(fs::hard_link_count(tree / "d/f") == 2);
  CHECK(fs::read_symlink(tree / "d/l") == "f");
  CHECK(read_file(tree / "\xff-bytes") == "b");
  CHECK(read_file(tree / "\xc3\xa9") == "e");
  CHECK(fs::exists(tree / "d/.wh.gone"));
  CHECK(fs::exists(tree / "o/.wh..wh..opq"));
  CHECK(read_file(tree / std::string(200, 'n')) == "long");
  CHECK(read_file(tree / "sparse") == std::string(1 << 20, '\0') + "end");
  CHECK(read_file(tree / "zeros") == std::string(1 << 20, '\0'));
  const CommandResult names = run_command({.argv = {"tar", "--numeric-owner", "-tvf", tar.native(), "x"}});
  CHECK(names.out.find("-rwsr-xr-x 70000/0") == 0);
}

TEST_CASE("a layer with files named like deletions is not exported as one that has deletions", "[layers][compose]") {
  using Catch::Contains;
  Blobs blobs;
  Progress quiet;
  const UniqueFd out = open_file(blobs.directory.path() / "out.tar", O_WRONLY | O_CREAT);
  const auto told = [&](const std::string& name, const std::vector<TestEntry>& entries) -> std::string {
    try {
      export_layer(blobs.store, blobs.store.add_layer(name, {entries}), out.get(), quiet);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  CHECK_THAT(told("toolkit/a", {file(".wh.a", "")}), Contains("'/.wh.a' has a name that means a deletion"));
  CHECK_THAT(told("toolkit/b", {dir("d"), file("d/.wh..wh..opq", "")}), Contains("'/d/.wh..wh..opq' has a name"));
  CHECK_THAT(told("toolkit/c", {dir(".wh.d"), file(".wh.d/f", "")}), Contains("'/.wh.d' has a name"));
  CHECK_THAT(told("toolkit/d", {dir("d"), whiteout("d/.wh.gone")}), Contains("'/d/.wh.gone' has a name"));
  CHECK(told("toolkit/e", {file("a.wh.b", ""), file(".whx", ""), dir("c.wh."), file("c.wh./d", "")}) == "");
}

TEST_CASE("an exported layer names no directories that it has only implicitly", "[layers][compose]") {
  Blobs blobs;
  const auto layer =
      blobs.store.add_layer("toolkit/t", {{dir("opt"), dir("opt/tool"), file("opt/tool/f")}}, {"", "opt"});
  const fs::path tar = blobs.directory.path() / "out.tar";
  Progress quiet;
  export_layer(blobs.store, layer, open_file(tar, O_WRONLY | O_CREAT).get(), quiet);
  CHECK(run_command({.argv = {"tar", "-tf", tar.native()}}).out == "opt/tool/\nopt/tool/f\n");
}

TEST_CASE("a foreign layer with nothing unusual becomes trusted", "[layers][compose]") {
  Blobs blobs;
  const auto layer = blobs.store.add_layer(
      "base/b",
      {{opaque_dir("o"),
        whiteout("w"),
        {.path = "p", .type = '5', .mode = 0755, .xattrs = {{"trusted.overlay.origin", ""}}},
        file("p/f", "1"),
        {.path = "p/x", .mode = 0755, .xattrs = {{"user.k", "v"}, {"security.capability", std::string(20, '\1')}}}}});
  check_foreign_layer(blobs.store, layer);
  CHECK(blobs.store.trusted == std::vector<Digest>{layer.digest});
  const auto devices =
      blobs.store.add_layer("base/d", {{{.path = "console", .type = '3', .mode = 0600, .major = 5, .minor = 1}}});
  check_foreign_layer(blobs.store, devices);
  const auto compressed = blobs.store.add_layer("base/c", {{file("f", std::string(100000, 'a'))}}, {}, "lz4");
  check_foreign_layer(blobs.store, compressed);
  CHECK(blobs.store.trusted.size() == 3);
}

TEST_CASE("a foreign layer that could attack the host is refused with the path", "[layers][compose]") {
  Blobs blobs;
  const auto refusal = [&](const std::vector<TestEntry>& tree) {
    try {
      check_foreign_layer(blobs.store, blobs.store.add_layer("base/b", {tree}));
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("accepted");
  };
  using Catch::Contains;
  CHECK_THAT(refusal({{.path = "d", .type = '5', .mode = 0755, .xattrs = {{"trusted.overlay.redirect", "/etc"}}}}),
             Contains("trusted.overlay.redirect") && Contains("'d'"));
  CHECK_THAT(refusal({{.path = "f", .xattrs = {{"trusted.overlay.metacopy", ""}}}}), Contains("metacopy"));
  CHECK_THAT(refusal({{.path = "f", .xattrs = {{"user.overlay.opaque", "y"}}}}), Contains("user.overlay.opaque"));
  CHECK_THAT(refusal({{.path = "f", .xattrs = {{"security.selinux", "x"}}}}), Contains("security.selinux"));
  CHECK_THAT(refusal({{.path = "d", .type = '5', .mode = 0755, .xattrs = {{"trusted.overlay.opaque", "x"}}}}),
             Contains("opaque"));
  CHECK(blobs.store.trusted.empty());
}

TEST_CASE("a foreign layer whose contents lie outside its data is refused", "[layers][compose]") {
  Blobs blobs;
  auto layer = blobs.store.add_layer("base/b", {{file("f", std::string(8192, 'x'))}});
  for (Blob& blob : layer.manifest.images[0].blobs)
    if (blob.role == BlobRole::Data) blob.size = 4096;
  REQUIRE_THROWS_WITH(check_foreign_layer(blobs.store, layer), Catch::Contains("not safe to mount"));
  CHECK(blobs.store.trusted.empty());
}

TEST_CASE("what is known of a stack is kept, and made anew when it is damaged", "[layers][compose]") {
  Blobs blobs;
  const auto base = blobs.store.add_layer("base/b", {{dir("tmp", 01777), link_to("bin", "usr/bin")}});
  const auto tool = blobs.store.add_layer("toolkit/t", {{dir("tmp"), file("tmp/f"), dir("bin")}}, {"tmp"});
  const Stack stack = {base, tool};
  const fs::path cache = blobs.directory.path() / "cache";
  const auto record = StackRecords(cache, blobs.store).of(stack);
  CHECK(record->conflicts == 1);
  CHECK(record->images.size() == 2);
  REQUIRE(record->fixup);
  const std::string image = read_file(*record->fixup);

  // A second reader needs no blobs any more.
  ImageStore empty(blobs.directory.path() / "empty");
  CHECK(StackRecords(cache, empty).of(stack)->conflicts == 1);
  CHECK(StackRecords(cache, empty).images_of(record->key) == record->images);

  write_file_atomic(cache / "stacks" / (record->key + ".json"), "{damaged");
  fs::remove(*record->fixup);
  CHECK(StackRecords(cache, blobs.store).of(stack)->conflicts == 1);
  CHECK(read_file(*record->fixup) == image);
}
