#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "core/base/child_process.h"
#include "layers/dir/debootstrap_source.h"
#include "tests/unit/layers/tree_on_disk.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

// A program called mmdebstrap at the front of PATH.
class StandIn {
 public:
  explicit StandIn(const std::string& script) : folder_(fs::temp_directory_path()), path_(std::getenv("PATH")) {
    std::ofstream(folder_.path() / "mmdebstrap") << "#!/bin/sh\n" << script;
    fs::permissions(folder_.path() / "mmdebstrap", fs::perms(0755));
    ::setenv("PATH", (folder_.path().native() + ":" + path_).c_str(), 1);
  }
  ~StandIn() { ::setenv("PATH", path_.c_str(), 1); }
  const fs::path& folder() const { return folder_.path(); }

 private:
  TempDirectory folder_;
  std::string path_;
};

TEST_CASE("a suite and its options are told apart from words that would be options of mmdebstrap", "[layers][dir]") {
  const DebootstrapRequest request =
      DebootstrapRequest::parse("bookworm?include=python3,git&variant=apt&components=main,contrib&epoch=5");
  CHECK(request.suite == "bookworm");
  CHECK(request.include == std::vector<std::string>{"python3", "git"});
  CHECK(request.variant == "apt");
  CHECK(request.components.size() == 2);
  CHECK(request.epoch == 5);
  CHECK_THAT(failure_of([] { DebootstrapRequest::parse("--setup-hook=x"); }), Contains("is no suite"));
  CHECK_THAT(failure_of([] { DebootstrapRequest::parse("x?include=-y"); }), Contains("'-y' is no package"));
  CHECK_THAT(failure_of([] { DebootstrapRequest::parse("x?mirror=--hook-dir=z"); }), Contains("is no mirror"));
  CHECK_THAT(failure_of([] { DebootstrapRequest::parse("x?variant=huge"); }), Contains("no variant 'huge'"));
  CHECK_THAT(failure_of([] { DebootstrapRequest::parse("x?hook=y"); }), Contains("has no option 'hook=y'"));
  CHECK_THAT(failure_of([] { DebootstrapRequest::parse("x?epoch=now"); }), Contains("not 'now'"));
}

TEST_CASE("a suite's archive becomes a layer of its packages without what is this host's", "[layers][dir]") {
  const StandIn program(
      "echo \"$@\" > $(dirname $0)/args; d=$(mktemp -d); mkdir -p $d/etc $d/var/lib/dpkg $d/var/log/apt $d/usr/bin "
      "$d/tmp/x\n"
      "echo host > $d/etc/hostname; echo dns > $d/etc/resolv.conf; echo log > $d/var/log/apt/term.log; echo x > "
      "$d/usr/bin/x\n"
      "printf 'Package: b\\nStatus: install ok installed\\nArchitecture: all\\nVersion: 2\\n\\nPackage: a\\nStatus: "
      "install ok installed\\n"
      "Architecture: amd64\\nVersion: 1:1\\n\\nPackage: gone\\nStatus: deinstall ok config-files\\nVersion: 3\\n' > "
      "$d/var/lib/dpkg/status\n"
      "echo working >&2; tar -C $d -c .; rm -r $d\n");
  struct Lines : Progress {
    std::string text;
    void output(std::string_view, std::string_view line) override { text += line; }
  } progress;
  const auto source = open_debootstrap_source(DebootstrapRequest::parse("trixie?include=git,python3"));
  const SourceFacts facts = source->examine({}, progress);
  RecordedTree tree;
  source->emit(0, tree);
  CHECK(tree.items.contains("usr/bin/x"));
  CHECK(tree.items.contains("var/log/apt"));
  for (const char* path : {"etc/hostname", "etc/resolv.conf", "var/log/apt/term.log", "tmp/x"})
    CHECK_FALSE(tree.items.contains(path));
  CHECK(facts.provenance.inputs.at("packages") == Digest::of("a:amd64 1:1\nb:all 2\n").str());
  CHECK(facts.provenance.options.at("include") == "git,python3");
  CHECK(progress.text == "working");
  CHECK(read_file(program.folder() / "args") == "--variant=minbase --format=tar --include=git,python3 trixie -\n");
}

TEST_CASE("a failing mmdebstrap is reported with its last words", "[layers][dir]") {
  const StandIn program("echo 'E: no such suite' >&2; exit 25\n");
  Progress silent;
  const auto source = open_debootstrap_source(DebootstrapRequest::parse("nosuch"));
  CHECK_THAT(
      failure_of([&] { source->examine({}, silent); }),
      Contains(
          "cannot make a system of the suite 'nosuch': mmdebstrap ended with exit code 25: it said: E: no such suite"));
}

}  // namespace
}  // namespace dsec::layers
