#include "layers/dockerfile/copy_files.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "tests/unit/layers/tar_builder.h"

namespace dsec::layers::dockerfile {
namespace {
namespace fs = std::filesystem;

/// A tree of directories, and of links to some.
struct Tree final : CopyOrigin {
  std::map<std::string, EntryType> entries = {{"", EntryType::Directory}};
  std::map<std::string, std::string> links;
  std::optional<Entry> find(const std::string& path) override {
    if (const auto link = links.find(path); link != links.end())
      return Entry{.path = path, .type = EntryType::Symlink, .mode = 0777, .target = link->second};
    const auto found = entries.find(path);
    if (found == entries.end()) return std::nullopt;
    return Entry{.path = path, .type = found->second, .mode = 0755};
  }
  std::vector<std::string> names(const std::string&) override { return {}; }
  void content(const std::string&, const std::function<void(std::string_view)>&) override {}
  int ignored(const std::string&) const override { return 0; }
  bool has_exceptions() const override { return false; }
};

/// Keeps what arrives: "path=content", "path/" of a directory, "path->target" of a link of either kind.
struct Kept final : TreeSink {
  std::vector<std::string> all;
  void entry(const Entry& entry) override {
    const bool link = entry.type == EntryType::HardLink || entry.type == EntryType::Symlink;
    all.push_back(entry.path + (entry.type == EntryType::Directory ? "/" : link ? "->" + entry.target : "="));
  }
  void data(std::string_view bytes) override { all.back() += bytes; }
};

class Added {
 public:
  explicit Added(const std::string& archive) {
    fs::create_directory(folder_.path() / "context");
    std::ofstream(folder_.path() / "context/a.tar") << archive;
  }
  fs::path file() const { return folder_.path() / "context/a.tar"; }

  std::vector<std::string> into(
      Tree& tree, const std::function<void()>& between = [] {}) {
    ContextOrigin context(folder_.path() / "context", IgnoreList());
    const CopyFiles copy{.unpack = true, .sources = {"a.tar"}, .to = "/", .into = true};
    Selection selection = Selection::make(context, copy, folder_.path());
    between();
    const std::unique_ptr<Source> source = selection.place(tree, copy);
    Progress silent;
    source->examine({}, silent);
    Kept kept;
    source->emit(0, kept);
    return kept.all;
  }

 private:
  TempDirectory folder_{fs::temp_directory_path()};
};

std::string problem(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "none";
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("an archive is unpacked through the links of the tree below", "[layers][dockerfile]") {
  Tree tree;
  tree.entries.insert({{"usr", EntryType::Directory}, {"usr/lib", EntryType::Directory}});
  tree.links = {{"lib", "usr/lib"}, {"usr/lib/deep", "/opt/deep"}};
  Added added(TarBuilder()
                  .file("lib/x", "one")
                  .hardlink("lib/y", "lib/x")
                  .file("lib/deep/z", "two")
                  .file("plain/w", "three")
                  .str());
  CHECK(added.into(tree) == Names{"opt/", "opt/deep/", "plain/", "usr/lib/x=one", "opt/deep/z=two", "plain/w=three",
                                  "usr/lib/y->usr/lib/x"});
}

TEST_CASE("of two names that come to one place in an archive one file is left", "[layers][dockerfile]") {
  Tree tree;
  tree.entries.insert({{"usr", EntryType::Directory}, {"usr/lib", EntryType::Directory}});
  tree.links = {{"lib", "usr/lib"}};
  Added added(TarBuilder().file("lib/x", "one").file("usr/lib/x", "two").str());
  CHECK(added.into(tree).size() == 1);
}

TEST_CASE("an archive that is replaced after the key was made is told", "[layers][dockerfile]") {
  Tree tree;
  Added added(TarBuilder().file("x", "one").str());
  const auto replace = [&] {
    fs::remove(added.file());
    std::ofstream(added.file()) << TarBuilder().file("y", "two").str();
  };
  CHECK(problem([&] { added.into(tree, replace); }) == "unpack 'a.tar': 'a.tar' changed while it was read");
}

TEST_CASE("an archive puts nothing in the place of a directory or below a file", "[layers][dockerfile]") {
  Tree tree;
  tree.entries.insert({{"usr", EntryType::Directory}, {"file", EntryType::File}});
  tree.links = {{"lib", "usr"}};
  CHECK(problem([&] { Added(TarBuilder().file("file/x", "one").str()).into(tree); }) == "'/file' is no directory");
  CHECK(problem([&] { Added(TarBuilder().dir("lib").file("lib/x", "one").str()).into(tree); }) ==
        "a directory cannot replace '/lib', which is none");
}

}  // namespace dsec::layers::dockerfile
