#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/archive_source.h"
#include "tests/unit/layers/recorded_tree.h"
#include "tests/unit/layers/tar_builder.h"

using namespace dsec;
using namespace dsec::layers;

namespace {

FileSpan in_memory(const std::string& bytes) {
  auto fd = std::make_shared<const UniqueFd>(::memfd_create("archive", MFD_CLOEXEC));
  write_all(fd->get(), bytes);
  return {fd, 0, bytes.size()};
}

/// The trees of an image's layers, each collapsed group one.
std::vector<RecordedTree> trees_of(const std::vector<std::string>& tars, std::uint64_t collapse_limit = 1 << 30) {
  ArchiveStack stack(LayerTree::Markers::Delete, {.platform = {}, .collapse_limit = collapse_limit});
  Progress progress;
  for (std::size_t i = 0; i < tars.size(); ++i)
    stack.add(in_memory(tars[i]), {"layer " + std::to_string(i), {}, {}}, progress);
  std::vector<RecordedTree> trees(stack.finish());
  for (std::size_t i = 0; i < trees.size(); ++i) {
    stack.emit(i, trees[i]);
    trees[i].finish();
  }
  return trees;
}

std::string collapsed(const std::vector<TarBuilder>& layers) {
  std::vector<std::string> tars;
  for (const TarBuilder& layer : layers) tars.push_back(layer.str());
  return trees_of(tars).at(0).listing();
}

/// Every layer an image of its own.
std::vector<std::string> stacked(const std::vector<TarBuilder>& layers) {
  std::vector<std::string> tars, listings;
  for (const TarBuilder& layer : layers) tars.push_back(layer.str());
  for (const RecordedTree& tree : trees_of(tars, 0)) listings.push_back(tree.listing());
  return listings;
}

std::string refusal_of(const std::vector<TarBuilder>& layers) {
  try {
    collapsed(layers);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a deletion acts on lower layers only, wherever it stands", "[layers][oci]") {
  const TarBuilder low = TarBuilder().dir("d").file("d/a", "1").file("d/b", "1").file("d/c", "1");
  CHECK(collapsed(
            {low, TarBuilder().file("d/.wh.a").file("d/a", "2").file("d/b", "2").file("d/.wh.b").file("d/.wh.c")}) ==
        "d/ d/a d/b");
  CHECK(collapsed({low, TarBuilder().file("d/new").file("d/.wh..wh..opq")}) == "d/ d/new");
  CHECK(collapsed({low, TarBuilder().file(".wh.d")}) == "");
  CHECK(collapsed({low, TarBuilder().file(".wh.nothing").file("no/such/.wh.x")}) == "d/ d/a d/b d/c");
  CHECK(collapsed({low, TarBuilder().file(".wh..wh..opq").file("x")}) == "x");
  // aufs makes its markers hard links.
  CHECK(collapsed({low, TarBuilder().file(".wh..wh.aufs").hardlink("d/.wh.a", ".wh..wh.aufs")}) == "d/ d/b d/c");
}

TEST_CASE("a marker may be longer than a name, but what it deletes may not", "[layers][oci]") {
  const std::string longest(255, 'n');
  CHECK(collapsed({TarBuilder().dir("d").file("d/" + longest).file("d/kept"), TarBuilder().file("d/.wh." + longest)}) ==
        "d/ d/kept");
  CHECK(collapsed({TarBuilder().file(longest).file("x"),
                   TarBuilder().file(".wh." + longest).hardlink(".wh.x", ".wh." + longest)}) == "");
  CHECK(refusal_of({TarBuilder().file(".wh." + longest + "n")}).find("longer than the 255 bytes") != std::string::npos);
  CHECK(refusal_of({TarBuilder().file(longest + "n")}).find("longer than the 255 bytes") != std::string::npos);
}

TEST_CASE("markers that name nothing are refused", "[layers][oci]") {
  CHECK(refusal_of({TarBuilder().file("d/.wh.")}).find("entry-not-representable") != std::string::npos);
  CHECK(refusal_of({TarBuilder().file("d/.wh...")}).find("entry-not-representable") != std::string::npos);
  CHECK(refusal_of({TarBuilder().file(".wh.d/x")}).find("lies below a deletion marker") != std::string::npos);
}

TEST_CASE("the book-keeping of aufs is not kept, but files linked to it are", "[layers][oci]") {
  CHECK(collapsed({TarBuilder()
                       .file(".wh..wh.aufs")
                       .dir(".wh..wh.orph")
                       .dir(".wh..wh.plnk")
                       .file(".wh..wh.plnk/1.2", "content")
                       .hardlink("bin/one", ".wh..wh.plnk/1.2")
                       .hardlink("bin/two", ".wh..wh.plnk/1.2")}) == "bin/one bin/two=>bin/one");
  // The kept name may as well be the link, wherever it stands, and be linked again.
  CHECK(collapsed({TarBuilder()
                       .hardlink("one", ".wh..wh.plnk/2")
                       .hardlink(".wh..wh.plnk/2", ".wh..wh.plnk/1")
                       .file("real", "content")
                       .hardlink(".wh..wh.plnk/1", "real")
                       .hardlink("two", ".wh..wh.plnk/1")}) == "one real=>one two=>one");
  for (const auto& tar : {TarBuilder().hardlink(".wh..wh.plnk/1", ".wh..wh.plnk/1").hardlink("x", ".wh..wh.plnk/1"),
                          TarBuilder().hardlink(".wh..wh.plnk/1", "away").hardlink("x", ".wh..wh.plnk/1")})
    CHECK(refusal_of({tar}).find("hardlink-target-missing: entry 'x'") != std::string::npos);
}

TEST_CASE("a marker deletes whatever its type is", "[layers][oci]") {
  const TarBuilder low = TarBuilder().dir("d").file("d/a").file("d/b");
  for (const TarBuilder::Fields& fields :
       {TarBuilder::Fields{.type = '3'}, {.type = '5'}, {.type = '6'}, {.type = '2', .link = "b"}, {.data = "content"}})
    CHECK(collapsed({low, TarBuilder().add("d/.wh.a", fields)}) == "d/ d/b");
  // A device 0:0 under any other name would delete what it lies over, and files could be linked to what aufs kept.
  for (const char* name : {"d/a", "d/.wh", "d/.wh..wh.a", ".wh..wh.plnk/.wh.a"})
    CHECK(refusal_of({low, TarBuilder().add(name, {.type = '3'})}).find("character device 0:0") != std::string::npos);
}

TEST_CASE("a directory may become something else and the reverse", "[layers][oci]") {
  const TarBuilder low = TarBuilder().dir("a").file("a/x").file("b").symlink("c", "a").dir("e").file("e/x");
  CHECK(collapsed({low, TarBuilder().file("a/.wh.x").symlink("a", "e").dir("b").file("b/y").dir("c").file("c/z").add(
                            "e", {.type = '6'})}) == "a->e b/ b/y c/ c/z e");
  // A deletion in a directory that the same layer puts in place of a symlink does not reach through the symlink.
  CHECK(collapsed({low, TarBuilder().dir("c").file("c/.wh.x")}) == "a/ a/x b c/ e/ e/x");
  // Without an entry of its own a file of a lower layer gives way to the directory that the path implies.
  CHECK(collapsed({low, TarBuilder().file("b/y")}) == "a/ a/x b/y c->a e/ e/x");
}

TEST_CASE("paths follow symlinks of lower layers inside the root", "[layers][oci]") {
  const TarBuilder low =
      TarBuilder().dir("usr/lib").file("usr/lib/old").symlink("lib", "usr/lib").symlink("alt", "/usr");
  CHECK(collapsed({low, TarBuilder().file("lib/x").file("alt/y").file("lib/.wh.old").hardlink("h", "lib/x")}) ==
        "alt->/usr h lib->usr/lib usr/lib/ usr/lib/x=>h usr/y");
  // A layer that repeats the symlink as it was still means the same place.
  CHECK(collapsed({low, TarBuilder().symlink("lib", "usr/lib").file("lib/x")}) ==
        "alt->/usr lib->usr/lib usr/lib/ usr/lib/old usr/lib/x");
  CHECK(refusal_of({TarBuilder().symlink("out", "../../etc"), TarBuilder().file("out/x")})
            .find("path-escapes-root: entry 'out/x' leads out of the root") != std::string::npos);
  CHECK(refusal_of({TarBuilder().symlink("a", "b").symlink("b", "a"), TarBuilder().file("a/x")})
            .find("too many symlinks") != std::string::npos);
  CHECK(refusal_of({low, TarBuilder().symlink("lib", "elsewhere").file("lib/x")}).find("path-escapes-root") !=
        std::string::npos);
}

TEST_CASE("hard links reach lower layers and what their own layer deletes", "[layers][oci]") {
  const TarBuilder low = TarBuilder().dir("d").file("d/f", "old").file("g", "old");
  std::vector<RecordedTree> trees = trees_of({low.str(), TarBuilder().file("d/.wh.f").hardlink("kept", "d/f").str()});
  CHECK(trees[0].listing() == "d/ g kept");
  CHECK(trees[0].content("kept") == "old");
  trees = trees_of({low.str(), TarBuilder().hardlink("h", "g").file("g", "new").str()});
  CHECK(trees[0].content("h") == "old");
  CHECK(trees[0].content("g") == "new");
  // What took the place of the deleted file afterwards, or that of the link's own folder, changes nothing.
  CHECK(collapsed({low, TarBuilder().hardlink("d/h", "g").file(".wh.g").dir("g")}) == "d/ d/f d/h g/");
  CHECK(collapsed({low, TarBuilder().dir("e").hardlink("e/h", "g").file("e").file(".wh.g")}) == "d/ d/f e");
  // Reading through a symlink of its own archive writes nothing there.
  CHECK(collapsed({TarBuilder().dir("d").file("d/f", "x").symlink("l", "d").hardlink("h", "l/f")}) ==
        "d/ d/f h=>d/f l->d");
  CHECK(refusal_of({TarBuilder().symlink("l", "../..").hardlink("h", "l/etc/passwd")}).find("path-escapes-root") !=
        std::string::npos);
}

TEST_CASE("links that wait for one another are made in one go, whatever their order", "[layers][oci]") {
  TarBuilder tar;
  constexpr int kLinks = 20'000;
  for (int i = 0; i < kLinks; ++i) tar.hardlink("l" + std::to_string(i), "l" + std::to_string(i + 1));
  tar.file("l" + std::to_string(kLinks), "x");
  const RecordedTree tree = std::move(trees_of({tar.str()})[0]);
  CHECK(tree.items().size() == kLinks + 1);
}

TEST_CASE("what a few bytes make long or slow is refused early", "[layers][oci]") {
  std::string down;
  for (int i = 0; i < 1000; ++i) down += "d/";
  SECTION("symlinks that lead through many directories") {
    TarBuilder low, top;
    low.dir("d").symlink("s0", down);
    for (int i = 1; i < 38; ++i) {
      std::string target;
      for (int dots = 0; dots < 2000; ++dots) target += "./";
      low.symlink("s" + std::to_string(i), target + "s" + std::to_string(i - 1));
    }
    for (int i = 0; i < 2000; ++i) top.file("s37/f" + std::to_string(i));
    CHECK(refusal_of({low, top}).find("lead through too many symlinks") != std::string::npos);
  }
  SECTION("symlinks that add up to a long path") {
    std::vector<TarBuilder> layers;
    for (int i = 0; i < 5; ++i)
      layers.push_back(
          TarBuilder().symlink("s" + std::to_string(i), (i ? "s" + std::to_string(i - 1) + "/" : "") + down));
    layers.push_back(TarBuilder().file("s4/x"));
    CHECK(refusal_of(layers).find("path-limit: entry 's4/x' leads through symlinks") != std::string::npos);
  }
  SECTION("directories without entries") {
    TarBuilder tar;
    for (int i = 0; i < 100; ++i) tar.file(std::to_string(i) + "/" + down + "x");
    CHECK(refusal_of({tar}).find("entry-limit: ") != std::string::npos);
  }
  SECTION("extended headers that add up") {
    TarBuilder tar;
    for (int i = 0; i < 20; ++i)
      tar.extended('x', TarBuilder::record("SCHILY.xattr.user." + std::to_string(i), std::string(60'000, 'v')));
    tar.raw("f", {});
    CHECK(refusal_of({tar}).find("layer-damaged: ") != std::string::npos);
  }
}

TEST_CASE("attributes of a directory come from the last layer that has an entry for it", "[layers][oci]") {
  const std::vector<RecordedTree> trees =
      trees_of({TarBuilder().dir("tmp", 01777).dir("./", 0711).str(), TarBuilder().file("tmp/x").str()}, 0);
  REQUIRE(trees.size() == 2);
  CHECK(trees[1].at("tmp").entry.mode == 01777);
  CHECK(trees[1].at("").entry.mode == 0711);
}

TEST_CASE("across images deletions are whiteouts, and only where something is hidden", "[layers][oci]") {
  const TarBuilder low = TarBuilder().dir("d").file("d/a").file("d/b").dir("e").file("e/x").dir("empty");
  CHECK(stacked(
            {low, TarBuilder().file("d/.wh.a").file("d/.wh.none").file("e/.wh..wh..opq").file("empty/.wh..wh..opq")}) ==
        std::vector<std::string>{"d/ d/a d/b e/ e/x empty/", "d/ -d/a e/!"});
  // A directory made anew hides a filled one, but not an empty one; a file needs nothing.
  CHECK(stacked(
            {low,
             TarBuilder().file(".wh.d").dir("d").file("d/c").file(".wh.e").file("e").file(".wh.empty").dir("empty")}) ==
        std::vector<std::string>{"d/ d/a d/b e/ e/x empty/", "d/! d/c e empty/"});
  // What the image itself deleted again leaves no mark.
  CHECK(stacked({low, TarBuilder().file("new"), TarBuilder().file(".wh.new")})[2] == "-new");
  CHECK(stacked({low, TarBuilder().file(".wh.d").file("d/implied")})[1] == "d/! d/implied");
  // Overlayfs does not look whether a layer's root is opaque.
  CHECK(stacked({low, TarBuilder().file(".wh..wh..opq").file("new").file("d/x")})[1] == "d/! d/x -e -empty new");
}

TEST_CASE("a sparse layer and an empty one make no image", "[layers][oci]") {
  CHECK(trees_of({TarBuilder().file("a").str(), "", std::string(1024, '\0'), TarBuilder().file("b").str()}, 0).size() ==
        2);
  CHECK(trees_of({}).size() == 1);
}

namespace {

/// What overlayfs shows of images stacked bottom to top: path and what stands there.
std::map<std::string, std::string> overlay(const std::vector<RecordedTree>& images) {
  std::map<std::string, std::string> merged;
  const auto erase_below = [&](const std::string& path) {
    std::erase_if(merged, [&](const auto& item) { return path.empty() || item.first.starts_with(path + "/"); });
  };
  for (const RecordedTree& image : images) {
    for (const auto& [path, item] : image.items()) {
      const Entry& entry = item.entry.type == EntryType::HardLink ? image.at(item.entry.target).entry : item.entry;
      const bool directory = entry.type == EntryType::Directory;
      if (!directory || entry.xattrs.contains("trusted.overlay.opaque")) erase_below(path);
      if (entry.type == EntryType::CharDevice && entry.major == 0 && entry.minor == 0) {
        // Only what is really there may be hidden.
        if (!merged.contains(path)) throw std::logic_error("a whiteout hides nothing: " + path);
        merged.erase(path);
      } else {
        // Parents that have no entry are directories all the same.
        for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
          std::string& parent = merged[path.substr(0, slash)];
          if (!parent.starts_with("d")) parent = "d755";
        }
        merged[path] = directory                          ? "d" + std::to_string(entry.mode)
                       : entry.type == EntryType::Symlink ? "l" + entry.target
                                                          : "f" + image.content(path);
      }
    }
  }
  std::erase_if(merged, [](const auto& item) { return item.first.empty(); });
  for (auto& [path, what] : merged)
    if (what == "d755") what = "d" + std::to_string(0755);
  return merged;
}

TarBuilder random_layer(std::mt19937& random, int number) {
  const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  const auto name = [&] {
    std::string path;
    for (int depth = pick(3); depth >= 0; --depth) path += std::string(path.empty() ? "" : "/") + "abc"[pick(3)];
    return path;
  };
  const auto marker = [](const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? ".wh." + path : path.substr(0, slash) + "/.wh." + path.substr(slash + 1);
  };
  TarBuilder tar;
  for (int i = pick(6); i >= 0; --i) {
    switch (pick(8)) {
      case 0:
        tar.dir(name(), 0700 + static_cast<unsigned>(pick(8)));
        break;
      case 1:
        tar.symlink(name(), std::string("abc").substr(static_cast<std::size_t>(pick(3)), 1));
        break;
      case 2:
        tar.file(marker(name()));
        break;
      case 3:
        tar.file(name() + "/.wh..wh..opq");
        break;
      case 4:
        tar.hardlink(name(), name());
        break;
      default:
        tar.file(name(), std::to_string(number) + "." + std::to_string(i));
        break;
    }
  }
  return tar;
}

}  // namespace

TEST_CASE("images stacked by overlayfs show what one collapsed image shows", "[layers][oci]") {
  std::mt19937 random(20261129);
  int compared = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> tars;
    for (int layer = 0; layer < 4; ++layer) tars.push_back(random_layer(random, layer).str());
    std::vector<RecordedTree> one, many;
    std::string refused_one, refused_many;
    try {
      one = trees_of(tars);
    } catch (const Error& error) {
      refused_one = error.message();
    }
    try {
      many = trees_of(tars, 0);
    } catch (const Error& error) {
      refused_many = error.message();
    }
    CAPTURE(round);
    std::string listings;
    for (const RecordedTree& tree : many) listings += tree.listing() + " | ";
    CAPTURE(listings);
    REQUIRE(refused_one == refused_many);
    if (!refused_one.empty()) continue;
    ++compared;
    CAPTURE(one.at(0).listing());
    const auto describe = [](const std::map<std::string, std::string>& merged) {
      std::string out;
      for (const auto& [path, what] : merged) out += path + "=" + what + "\n";
      return out;
    };
    REQUIRE(describe(overlay(one)) == describe(overlay(many)));
  }
  CHECK(compared > 100);
}

TEST_CASE("whatever bytes of an archive are altered, it is applied or refused", "[layers][oci]") {
  const std::string low =
      TarBuilder()
          .dir("d", 0700)
          .file("d/a", std::string(700, 'a'), {.pax = {{"mtime", "-1.5"}, {"SCHILY.xattr.user.x", "y"}}})
          .hardlink("d/b", "d/a")
          .file("GNUSparseFile.0/s", "abcde",
                {.pax = {{"GNU.sparse.size", "2100"}, {"GNU.sparse.name", "s"}, {"GNU.sparse.map", "1000,3,2000,2"}}})
          .symlink("l", "d")
          .str();
  const std::string top = TarBuilder().file("d/.wh.a").file("l/x", "x").file("e/.wh..wh..opq").str();
  const SourceOptions options{.collapse_limit = 0, .limits = {.unpacked_bytes = 1 << 20, .entries = 100}};
  std::mt19937 random(7);
  int applied = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string altered = low;
    for (int count = static_cast<int>(random() % 3); count >= 0; --count) {
      // Most of an archive is padding; what is not decides.
      std::size_t at = random() % altered.size();
      for (int tries = 0; altered[at] == '\0' && tries < 20; ++tries) at = random() % altered.size();
      altered[at] = static_cast<char>(random() % 4 ? '0' + random() % 10 : random());
    }
    // Sums are not what stands in the way of real damage.
    for (std::size_t at = 0; at + 512 <= altered.size(); at += 512) {
      if (altered.compare(at + 257, 5, "ustar") != 0) continue;
      unsigned sum = 0;
      for (std::size_t i = 0; i < 512; ++i)
        sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(altered[at + i]);
      char digits[8];
      std::snprintf(digits, sizeof digits, "%06o", sum & 0777777u);
      altered.replace(at + 148, 7, std::string_view(digits, 7));
    }
    try {
      ArchiveStack stack(LayerTree::Markers::Delete, options);
      Progress progress;
      for (const std::string& tar : {altered, top}) stack.add(in_memory(tar), {"layer", {}, {}}, progress);
      const std::size_t images = stack.finish();
      for (std::size_t i = 0; i < images; ++i) {
        RecordedTree tree;
        stack.emit(i, tree);
        tree.finish();
      }
      ++applied;
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(applied > 500);
  CHECK(refused > 500);
}
