#include <catch2/catch.hpp>

#include "core/base/files.h"
#include "layers/dir/ignore_rules.h"
#include "layers/dir/scrub.h"
#include "tests/unit/layers/git_repository.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

TEST_CASE("ignore patterns decide as git's do", "[layers][dir]") {
  const std::string patterns =
      "# "
      "comment\n\\#literal\n\\!bang\n*.o\n!keep.o\n/top\nfolder/\na/b\n**/deep\nx/**\ny/**/"
      "z\nset[0-9a-c]\nnot[!a]\nq?\n"
      "trail   \nspace\\ \n[[:upper:]]UP\nsub/*.txt\n*/mid/*\nstar*star*end\nesc\\*\n[]]\n[a-\n**\\/odd\nend\\\n";
  const std::vector<std::string> paths = {
      "#literal", "!bang",    "a.o",       "d/a.o",       "keep.o",   "d/keep.o", "top",        "d/top",
      "folder",   "d/folder", "a/b",       "c/a/b",       "deep",     "m/n/deep", "x",          "x/y",
      "x/y/z",    "y/z",      "y/k/z",     "y/k/l/z",     "set5",     "setb",     "setz",       "nota",
      "notb",     "qq",       "q",         "qqq",         "trail",    "trail   ", "space ",     "space",
      "XUP",      "xUP",      "sub/a.txt", "sub/s/a.txt", "p/mid/q1", "mid/q1",   "p/r/mid/q1", "starXstarYend",
      "starend",  "esc*",     "escx",      "]",           "[a-",      "odd",      "end\\",      "end"};
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path());
  const IgnoreRules rules = IgnoreRules::parse(patterns);
  repository.write(".git/info/exclude", patterns);
  for (const std::string& path : paths) {
    INFO(path);
    // git check-ignore --verbose --non-matching tells the pattern itself, taken back or not.
    for (const bool folder : {false, true}) {
      TempDirectory tree(fs::temp_directory_path());
      fs::create_directories(folder ? tree.path() / path : (tree.path() / path).parent_path());
      if (!folder) std::ofstream(tree.path() / path) << "x";
      const std::string answer =
          repository.git({"--git-dir", (scratch.path() / ".git").native(), "--work-tree", tree.path().native(), "-C",
                          tree.path().native(), "check-ignore", "-v", "-n", "--no-index", "--stdin"},
                         path + "\n", false);
      const bool matched = !answer.starts_with("::");
      const std::string pattern = matched
                                      ? answer.substr(answer.find(':', answer.find(':') + 1) + 1,
                                                      answer.find('\t') - answer.find(':', answer.find(':') + 1) - 1)
                                      : "";
      const bool by_parent =
          path.find('/') != std::string::npos && rules.ignores(path.substr(0, path.rfind('/')), true);
      if (by_parent) continue;
      const auto decided = rules.decide(path, folder);
      CHECK(decided.has_value() == matched);
      if (matched && decided) CHECK(*decided == !pattern.starts_with('!'));
    }
  }
}

TEST_CASE("a pattern made to be slow is not", "[layers][dir]") {
  std::string pattern, path;
  for (int i = 0; i < 40; ++i) pattern += "*a", path += "aa";
  CHECK_FALSE(wildcard_match(pattern + "b", path));
  std::string folders, wanted;
  for (int i = 0; i < 40; ++i) wanted += "**/a/", folders += "a/a/";
  CHECK_FALSE(wildcard_match(wanted + "b", folders + "c"));
}

TEST_CASE("the scrub list takes residue, adds what is asked and leaves what is kept", "[layers][dir]") {
  const Scrub plain = Scrub::standard();
  using Verdict = Scrub::Verdict;
  for (const char* path : {"tmp/x", "var/tmp/x", "var/log/dpkg.log", "var/log/nginx/access.log", "var/lib/apt/lists/x",
                           "root/.bash_history", "home/me/.python_history", "root/.cache/pip",
                           "etc/ssh/ssh_host_rsa_key", "etc/machine-id", "root/.ssh/id_ed25519",
                           "var/cache/apt/archives/x.deb", "root/.wget-hsts", "root/.npm/_cacache", "home/me/.netrc"}) {
    INFO(path);
    CHECK(plain.judge(path, false) == Verdict::Residue);
  }
  for (const char* path : {"", "tmp", "var/log", "var/log/nginx", "var/lib/apt/lists/partial", "run/lock"}) {
    INFO(path);
    CHECK(plain.judge(path, true) == Verdict::Keep);
  }
  for (const char* path : {"usr/lib/python3/__pycache__/x.pyc", "root/.ssh/authorized_keys", "workspace/tmp/x",
                           "root/.cache/huggingface/x", "root/.npmrc"}) {
    INFO(path);
    CHECK(plain.judge(path, false) == Verdict::Keep);
  }
  const Scrub own = Scrub::standard({"__pycache__", "/workspace/build"}, {"/tmp/wheels", "/var/log/kept.log"});
  CHECK(own.judge("a/__pycache__", true) == Verdict::Residue);
  CHECK(own.judge("workspace/build", true) == Verdict::Residue);
  CHECK(own.judge("tmp/wheels/x.whl", false) == Verdict::KeepAll);
  CHECK(own.judge("var/log/kept.log", false) == Verdict::KeepAll);
  CHECK(own.judge("tmp/other", false) == Verdict::Residue);
  CHECK(own.text() != plain.text());
  CHECK(Scrub().judge("tmp/x", false) == Verdict::Keep);
}

TEST_CASE("the man page names every group and path of the scrub list", "[layers][dir]") {
  std::string page = read_file(fs::path(DSEC_SOURCE_DIR) / "man/dsec-sources.7.md");
  std::erase(page, '\\');
  for (const ResidueRule& rule : residue_rules()) {
    INFO(rule.pattern);
    CHECK(page.find("\n`" + std::string(rule.name) + "`\n") != std::string::npos);
    std::string_view path = rule.pattern;
    if (path.ends_with("/**")) path.remove_suffix(3);
    if (path.ends_with("/*")) path.remove_suffix(2);
    if (path.ends_with(".pub")) path.remove_suffix(4);
    CHECK(page.find(path.substr(path.rfind('/') + 1)) != std::string::npos);
  }
}

}  // namespace
}  // namespace dsec::layers
