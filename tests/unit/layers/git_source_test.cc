#include "layers/git/git_source.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "tests/unit/layers/git_repository.h"
#include "tests/unit/layers/tree_on_disk.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct Imported {
  SourceFacts facts;
  RecordedTree tree;
};

Imported import(const std::string& text, const SourceOptions& options = {}) {
  Progress silent;
  const auto source = open_git_source(GitRequest::parse(text));
  Imported result{source->examine(options, silent), {}};
  source->emit(0, result.tree);
  result.tree.finish();
  return result;
}

std::string failure_of(const std::string& text) {
  try {
    import(text);
  } catch (const Error& error) {
    std::string all = error.message();
    for (const auto& hint : error.hints()) all += " try: " + hint;
    return all;
  }
  return "";
}

const std::string& bytes_of(const Imported& imported, const std::string& path) {
  return imported.tree.items.at(path).bytes;
}

// A delivered repository, on disk so that git itself can judge it.
struct Delivered {
  explicit Delivered(const Imported& imported)
      : scratch(fs::temp_directory_path()), repository(scratch.path() / "other") {
    write_to_disk(imported.tree, scratch.path() / "tree");
  }
  std::string git(std::vector<std::string> words) {
    words.insert(words.begin(), {"-C", (scratch.path() / "tree").native()});
    return repository.git(words, {}, false);
  }
  void check_sound() {
    const std::string fsck = git({"fsck", "--full", "--strict"});
    CHECK(repository.status == 0);
    CHECK(fsck == "");
    CHECK(git({"status", "--porcelain"}) == "");
    CHECK(repository.status == 0);
  }
  TempDirectory scratch;
  TestRepository repository;
};

TEST_CASE("a workspace holds the files of the commit and a repository of its past", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("src/app.py", "one\n");
  repository.write("run", "#!/bin/sh\n", 0755);
  fs::create_symlink("src/app.py", repository.path() / "link");
  repository.commit("first");
  repository.write("src/app.py", "two\n");
  const std::string wanted = repository.commit("second");
  const Imported imported = import(repository.path().native() + "@main");

  CHECK(bytes_of(imported, "src/app.py") == "two\n");
  CHECK(imported.tree.items.at("src/app.py").entry.mode == 0644);
  CHECK(imported.tree.items.at("run").entry.mode == 0755);
  CHECK(imported.tree.items.at("link").entry.target == "src/app.py");
  CHECK(imported.tree.items.at("src").entry.mode == 0755);
  CHECK(imported.facts.provenance.inputs.at("commit") == wanted);
  CHECK(imported.facts.warnings.empty());
  const std::int64_t time = std::stoll(repository.git({"show", "-s", "--format=%ct", wanted}));
  for (const auto& [path, item] : imported.tree.items) {
    CHECK(item.entry.mtime == Timestamp{time, 0});
    CHECK(item.entry.uid == 0);
  }

  Delivered delivered(imported);
  delivered.check_sound();
  CHECK(delivered.git({"rev-parse", "HEAD"}) == wanted);
  CHECK(delivered.git({"rev-list", "--count", "HEAD"}) == "2");
  CHECK(delivered.git({"symbolic-ref", "HEAD"}) == "refs/heads/main");
  CHECK(delivered.git({"commit", "-q", "--allow-empty", "-m", "more"}) == "");
}

TEST_CASE("nothing of the future is in any byte of a workspace", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository donor(scratch.path() / "donor-FUTURE");
  donor.write("a", "a\n");
  donor.commit("a");
  donor.write("lent", "FUTURE lent\n");
  donor.commit("FUTURE of the lender");
  TestRepository repository(scratch.path() / "r");
  repository.write("a", std::string(2000, 'a') + "\n");
  repository.commit("start");
  repository.write("a", std::string(2000, 'a') + "\nb\n");
  const std::string base = repository.commit("base");
  std::ofstream(repository.path() / ".git/objects/info/alternates") << (donor.path() / ".git/objects").native() << "\n";
  repository.git({"branch", "here", base});
  repository.write("a", std::string(2000, 'a') + "\nFUTURE packed\n");
  repository.commit("FUTURE commit, packed");
  repository.git({"tag", "v2-FUTURE"});
  repository.git({"tag", "-a", "v3", "-m", "FUTURE release"});
  repository.git({"notes", "add", "-m", "FUTURE note", base});
  repository.git({"repack", "-adq"});
  repository.write("a", "FUTURE loose\n");
  repository.commit("FUTURE commit, loose");
  repository.git({"branch", "FUTURE-branch"});
  repository.git({"remote", "add", "FUTURE-remote", "https://user:FUTURE@example.invalid/FUTURE"});
  repository.write("a", "FUTURE stash\n");
  repository.git({"stash", "-q"});
  repository.git({"replace", base, "HEAD"});
  repository.write("untracked", "FUTURE untracked\n");
  repository.git({"pack-refs", "--all"});

  for (const std::string history : {"none", "past"}) {
    const Imported imported = import(repository.path().native() + "@here?history=" + history);
    CHECK(imported.tree.text().find("FUTURE") == std::string::npos);
    CHECK(imported.tree.items.contains(".git") == (history == "past"));
    if (history == "none") continue;
    // Objects are compressed: what git finds in them counts too.
    Delivered delivered(imported);
    delivered.check_sound();
    CHECK(delivered.git({"cat-file", "--batch-all-objects", "--batch"}).find("FUTURE") == std::string::npos);
    const std::string reachable = delivered.git({"rev-list", "--objects", "--no-object-names", "HEAD"});
    const std::string all = delivered.git({"cat-file", "--batch-all-objects", "--batch-check=%(objectname)"});
    CHECK(std::count(all.begin(), all.end(), '\n') == std::count(reachable.begin(), reachable.end(), '\n'));
    CHECK(delivered.git({"for-each-ref", "--format=%(refname)"}) == "refs/heads/main");
  }
}

TEST_CASE("the same commit gives the same bytes, whatever else its repository holds", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository one(scratch.path() / "one");
  for (int i = 0; i < 30; ++i) {
    one.write("f" + std::to_string(i % 5), std::string(500, static_cast<char>('a' + i % 7)) + std::to_string(i) + "\n");
    one.commit("c" + std::to_string(i));
  }
  const std::string wanted = one.git({"rev-parse", "HEAD~2"});
  one.git({"clone", "-q", "--bare", ".", (scratch.path() / "two.git").native()});
  one.git({"tag", "-a", "tagged", "-m", "t", wanted + "~3"});
  one.git({"repack", "-adfq", "--depth=50", "--window=50"});
  const Imported first = import(one.path().native() + "@" + wanted);
  const Imported second = import((scratch.path() / "two.git").native() + "@" + wanted);
  CHECK(first.facts.identity == second.facts.identity);
  CHECK(first.tree.text() == second.tree.text());
  CHECK(import(one.path().native() + "@HEAD~2").tree.text() == first.tree.text());
  CHECK(import(one.path().native() + "@" + wanted + "?history=none").facts.identity != first.facts.identity);
}

TEST_CASE("a revision may be a branch, a tag, a short id or a way back", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r@x");
  repository.write("a", "1\n");
  const std::string first = repository.commit("1");
  repository.git({"tag", "light"});
  repository.git({"tag", "-a", "heavy", "-m", "x"});
  repository.git({"checkout", "-q", "-b", "feature/x@2"});
  repository.write("a", "2\n");
  const std::string second = repository.commit("2");
  const std::string at = repository.path().native();
  const auto commit = [&](const std::string& revision) {
    return import(at + revision).facts.provenance.inputs.at("commit");
  };
  CHECK(commit("@light") == first);
  CHECK(commit("@heavy") == first);
  CHECK(commit("@main") == first);
  CHECK(commit("@feature/x@2~1") == first);
  CHECK(commit("@@~1") == first);
  CHECK(commit("@feature/x@2") == second);
  CHECK(commit("@" + second.substr(0, 8)) == second);
  CHECK(commit("") == second);
  CHECK(commit("/.git@HEAD^") == first);
  CHECK_THAT(failure_of(at + "@nowhere"),
             Contains("reference-missing: find the revision 'nowhere'") && Contains("try: git log"));
  CHECK_THAT(failure_of(at + "@0000000000000000000000000000000000000001"), Contains("find the revision"));
  CHECK_THAT(failure_of(at + "@main^{tree}"), Contains("'main^{tree}' names a tree, no commit"));
  CHECK_THAT(failure_of(at + "/nothing@main"), Contains("nothing': No such file or directory (ENOENT)"));
}

TEST_CASE("a path inside a work tree is refused with the way to its repository", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("sub/a", "1\n");
  repository.commit("1");
  CHECK_THAT(failure_of((repository.path() / "sub").native()),
             Contains("is no git repository") && Contains("try: git:" + repository.path().native()));
}

TEST_CASE("line ends, idents and encodings are what git's own checkout writes", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write(
      ".gitattributes",
      "*.txt text eol=crlf\n*.sh text eol=lf\n*.bin -text\n*.auto text=auto eol=crlf\n*.id ident\n"
      "*.old crlf\n*.u16 working-tree-encoding=UTF-16LE-BOM text\n*.l1 working-tree-encoding=ISO-8859-1\n"
      "[attr]dos text eol=crlf\n*.bat dos\n*.dat filter=lfs diff=lfs -text\n/top.only text eol=crlf\n"
      "sub/** text eol=crlf\n\"q x\" text eol=crlf\n\"tab\\tt\\303\\274\" text eol=crlf\n*.un text eol=crlf\n"
      "x.un !text !eol\n!neg text eol=crlf\nbad*name -bad*name text eol=crlf\n*.bb text eol=crlf binary\n"
      "[attr]binary text eol=crlf\n*.rb binary\n*.in crlf=input eol=crlf\n  lead text eol=crlf\nd/ text eol=crlf\n"
      "*.val text eol=CRLF\n*.ex text -text eol=crlf text\n");
  repository.write("deep/er/.gitattributes", "*.txt -text\n");
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.txt", "one\ntwo\n"},
      {"none.txt", "no end"},
      {"empty.txt", ""},
      {"run.sh", "#!/bin/sh\n"},
      {"mix.bin", "a\nb\r\nc\r"},
      {"x.auto", "text\nlines\n"},
      {"nul.auto", std::string("a\0b\n", 4)},
      {"v.id", "x $Id$ y\n$Id: old $ $Id: a b c $ $Id: open\n"},
      {"o.old", "a\nb\n"},
      {"w.u16", "gr\xc3\xbc\xc3\x9f\n"},
      {"w.l1", "gr\xc3\xbc\xc3\x9f\n"},
      {"b.bat", "echo\n"},
      {"lfs.dat", "version https://git-lfs.github.com/spec/v1\noid sha256:5\nsize 1\n"},
      {"top.only", "a\n"},
      {"d/top.only", "a\n"},
      {"sub/any/thing", "a\n"},
      {"deep/er/a.txt", "a\n"},
      {"q x", "a\n"},
      {"deep/q x", "a\n"},
      {"tab\tt\xc3\xbc", "a\n"},
      {"x.un", "a\n"},
      {"y.un", "a\n"},
      {"neg", "a\n"},
      {"!neg", "a\n"},
      {"badname", "a\n"},
      {"a.bb", "a\n"},
      {"a.rb", "a\n"},
      {"a.in", "a\n"},
      {"lead", "a\n"},
      {"a.val", "a\n"},
      {"a.ex", "a\n"},
      {"deep/b.txt", "a\n"}};
  // Blobs exactly as given: adding them as files would convert them first.
  repository.git({"add", ".gitattributes", "deep"});
  for (const auto& [name, bytes] : files)
    repository.git(
        {"update-index", "--add", "--cacheinfo", "100644," + repository.raw_object("blob", bytes) + "," + name});
  repository.git({"commit", "-q", "-m", "all"});
  repository.git({"config", "core.autocrlf", "true"});
  repository.git({"config", "core.eol", "crlf"});

  TempDirectory expected(fs::temp_directory_path());
  TestRepository clean(expected.path() / "clean");
  clean.git({"fetch", "-q", repository.path().native(), "main"});
  clean.git({"checkout", "-q", "FETCH_HEAD"});

  const Imported imported = import(repository.path().native() + "@main");
  for (const auto& [name, bytes] : files) {
    INFO(name);
    CHECK(bytes_of(imported, name) == read_file(clean.path() / name));
  }
  CHECK(bytes_of(imported, "a.txt") == "one\r\ntwo\r\n");
  Delivered delivered(imported);
  // An ident that was stored expanded differs from what git would store: so it is after a checkout by git, too.
  CHECK(delivered.git({"status", "--porcelain"}) == " M v.id");
}

TEST_CASE("pointers of Git LFS stay what they are and are reported", "[layers][git]") {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 1\n";
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("plain.bin", pointer);  // no attribute makes it one
  repository.write(".gitattributes", "*.dat filter=lfs -text\n/kept.dat !filter\n");
  for (const char* name : {"d/one.dat", "kept.dat"}) repository.write(name, pointer);
  repository.write("empty.dat", "");
  repository.write("large.dat", pointer + std::string(2000, 'x'));
  repository.commit("all");
  const auto warnings = [&] { return import(repository.path().native() + "@HEAD").facts.warnings; };
  CHECK(warnings() ==
        std::vector<std::string>{"'d/one.dat' is a pointer of Git LFS and stays one: its content is not in git"});
  repository.write("two.dat", pointer);
  repository.commit("two");
  CHECK(warnings() == std::vector<std::string>{"2 files ('d/one.dat' and others) are pointers of Git LFS and stay so: "
                                               "their contents are not in git"});
  CHECK(bytes_of(import(repository.path().native()), "d/one.dat") == pointer);
}

TEST_CASE("nothing that a repository's configuration names is run or carried over", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write(".gitattributes", "*.x filter=evil diff=evil\n");
  repository.write("a.x", "plain\n");
  repository.commit("all");
  repository.write("a.x", "dirty\n");  // the work tree is compared, which is when git would run clean and fsmonitor
  const std::string mark = (scratch.path() / "pwned").native();
  for (const char* key :
       {"core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "filter.evil.smudge", "filter.evil.clean",
        "filter.evil.process", "diff.evil.textconv", "diff.external", "uploadpack.packObjectsHook",
        "core.alternateRefsCommand", "core.gitProxy", "credential.helper", "gpg.program"})
    repository.git({"config", key, "touch " + mark});
  repository.git({"config", "filter.evil.required", "true"});
  repository.git({"config", "core.hooksPath", (scratch.path() / "hooks").native()});
  ::mkfifo((scratch.path() / "fifo").c_str(), 0600);
  repository.git({"config", "include.path", (scratch.path() / "fifo").native()}, {}, false);
  for (const char* hook :
       {"post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman"}) {
    fs::create_directories(scratch.path() / "hooks");
    std::ofstream(scratch.path() / "hooks" / hook) << "#!/bin/sh\ntouch " << mark << "\n";
    fs::permissions(scratch.path() / "hooks" / hook, fs::perms(0755));
  }
  const Imported imported = import(repository.path().native() + "@main");
  CHECK(bytes_of(imported, "a.x") == "plain\n");
  CHECK_FALSE(fs::exists(mark));
  CHECK(imported.tree.text().find("pwned") == std::string::npos);
  CHECK(bytes_of(imported, ".git/config").find("hooks") == std::string::npos);
  REQUIRE(imported.facts.warnings.size() == 1);
  CHECK_THAT(imported.facts.warnings[0], Contains("1 changed"));
}

TEST_CASE("a dirty source is reported, never taken and never written", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write(".gitignore", ".env\n");
  for (const char* name : {"a", "b", "c", "same"}) repository.write(name, std::string(name) + "\n");
  repository.commit("all");
  repository.write(".env", "DIRTY\n");
  repository.write("a", "DIRTY\n");
  repository.write("b", "DIRTY\n");
  repository.git({"add", "b"});
  fs::remove(repository.path() / "c");
  repository.write("same", "same\n");  // another time and inode, the same content
  const auto before = fs::last_write_time(repository.path() / ".git/index");
  const std::string index = read_file(repository.path() / ".git/index");
  const Imported imported = import(repository.path().native() + "@HEAD");
  CHECK(imported.tree.text().find("DIRTY") == std::string::npos);
  CHECK(bytes_of(imported, "c") == "c\n");
  REQUIRE(imported.facts.warnings.size() == 1);
  CHECK_THAT(imported.facts.warnings[0], Contains("1 staged, 1 changed, 1 deleted"));
  CHECK(fs::last_write_time(repository.path() / ".git/index") == before);
  CHECK(read_file(repository.path() / ".git/index") == index);
}

TEST_CASE("files that git does not track are reported as git counts them", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write(".gitignore", "*.o\n/build/\n!kept.o\n");
  repository.write("src/.gitignore", "local\n!/deep/x.o\n");
  repository.write("src/a", "1\n");
  repository.commit("all");
  const auto told = [&] {
    const auto warnings = import(repository.path().native()).facts.warnings;
    return warnings.empty() ? "" : warnings.at(0).substr(warnings[0].rfind(": ") + 2);
  };
  const auto of_git = [&] {
    const std::string listed = repository.git({"status", "--porcelain"});
    return listed.empty() ? "" : std::to_string(std::count(listed.begin(), listed.end(), '\n') + 1) + " untracked";
  };
  for (const char* ignored : {"a.o", "build/out", "src/local", "only/b.o", "by-exclude"})
    repository.write(ignored, "x");
  std::ofstream(repository.path() / ".git/info/exclude") << "by-exclude\n";
  CHECK(told() == "");
  CHECK(of_git() == "");
  for (const char* untracked :
       {"new", "src/b", "src/deep/x.o", "kept.o", "folder/one", "folder/two/three", "src/build/out"})
    repository.write(untracked, "x");
  fs::create_symlink("nowhere", repository.path() / "link");
  fs::create_directories(repository.path() / "empty/folder");
  ::mkfifo((repository.path() / "pipe").c_str(), 0600);
  repository.git({"init", "-q", (repository.path() / "nested").native()});
  std::ofstream(repository.path() / "nested/file") << "x";
  CHECK(told() == "8 untracked");
  CHECK(of_git() == "8 untracked");
}

TEST_CASE("a work tree is not looked at through its symlinks, nor are files read that cannot be the same",
          "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("d/kcore", "x\n");
  repository.write("d/version", "x\n");
  repository.write("sparse", "x\n");
  repository.write("pipe", "x\n");
  repository.commit("all");
  fs::rename(repository.path() / "d", scratch.path() / "d");
  fs::create_symlink("/proc", repository.path() / "d");
  fs::resize_file(repository.path() / "sparse", 1ull << 40);
  fs::remove(repository.path() / "pipe");
  ::mkfifo((repository.path() / "pipe").c_str(), 0600);
  const Imported imported = import(repository.path().native());
  CHECK(bytes_of(imported, "d/kcore") == "x\n");
  REQUIRE(imported.facts.warnings.size() == 1);
  CHECK_THAT(imported.facts.warnings[0], Contains("2 changed, 2 deleted"));
}

TEST_CASE("submodules are empty folders, and nothing of them is fetched", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  const std::string mark = (scratch.path() / "pwned").native();
  repository.write(".gitmodules", "[submodule \"../../evil\"]\n\tpath = evil\n\turl = ext::sh -c touch% " + mark +
                                      "\n\tupdate = !touch " + mark + "\n");
  repository.write("f", "f\n");
  for (const char* path : {"lib/good", "evil"})
    repository.git({"update-index", "--add", "--cacheinfo",
                    "160000,1111111111111111111111111111111111111111," + std::string(path)});
  repository.git({"add", ".gitmodules", "f"});
  repository.git({"commit", "-q", "-m", "all"});
  const Imported imported = import(repository.path().native() + "@main");
  CHECK(imported.tree.items.at("lib/good").entry.type == EntryType::Directory);
  CHECK(imported.tree.items.at("evil").entry.type == EntryType::Directory);
  CHECK_FALSE(fs::exists(mark));
  REQUIRE(imported.facts.warnings.size() == 1);
  CHECK_THAT(imported.facts.warnings[0], Contains("2 submodules ('evil' and others) left as empty folders"));
  Delivered delivered(imported);
  CHECK(delivered.git({"status", "--porcelain"}) == "");
}

TEST_CASE("a shallow clone keeps its boundary and says so", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  for (int i = 0; i < 4; ++i) repository.commit("c" + std::to_string(i));
  repository.git(
      {"clone", "-q", "--depth", "2", "file://" + repository.path().native(), (scratch.path() / "shallow").native()});
  const Imported imported = import((scratch.path() / "shallow").native());
  REQUIRE(imported.facts.warnings.size() == 1);
  CHECK_THAT(imported.facts.warnings[0], Contains("shallow clone") && Contains("1 commit without parents"));
  Delivered delivered(imported);
  delivered.check_sound();
  CHECK(delivered.git({"rev-list", "--count", "HEAD"}) == "2");
  CHECK(bytes_of(imported, ".git/shallow") == repository.git({"rev-parse", "HEAD~1"}) + "\n");
  CHECK_THAT(failure_of((scratch.path() / "shallow").native() + "@HEAD~3"), Contains("git fetch --unshallow"));
}

TEST_CASE("linked work trees, alternates and bare repositories are read", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("a", "a\n");
  const std::string first = repository.commit("a");
  repository.git({"worktree", "add", "-q", (scratch.path() / "linked").native(), "-b", "side"});
  repository.git({"clone", "-q", "--shared", ".", (scratch.path() / "shared").native()});
  repository.git(
      {"clone", "-q", "--shared", (scratch.path() / "shared").native(), (scratch.path() / "twice").native()});
  for (const char* place : {"linked", "shared", "twice"}) {
    const Imported imported = import((scratch.path() / place).native());
    CHECK(imported.facts.provenance.inputs.at("commit") == first);
    CHECK(imported.tree.text().find(scratch.path().native()) == std::string::npos);
    Delivered(imported).check_sound();
  }
  fs::rename(repository.path(), scratch.path() / "gone");
  CHECK_THAT(failure_of((scratch.path() / "shared").native()),
             Contains("borrows objects from") && Contains("git repack -a -d"));
}

TEST_CASE("full history holds every ref and what it reaches", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("a", "a\n");
  const std::string first = repository.commit("a");
  repository.commit("later");
  repository.git({"tag", "-a", "v1", "-m", "release"});
  const Imported imported = import(repository.path().native() + "@" + first + "?history=full");
  Delivered delivered(imported);
  delivered.check_sound();
  CHECK(delivered.git({"rev-parse", "HEAD"}) == first);
  CHECK(delivered.git({"for-each-ref", "--format=%(refname)"}) == "refs/heads/main\nrefs/tags/v1");
  CHECK(delivered.git({"log", "-1", "--format=%s", "v1"}) == "later");
  CHECK(imported.facts.provenance.inputs.contains("refs"));
}

TEST_CASE("trees that git would not check out are refused by name", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  const std::string blob = repository.raw_object("blob", "x\n");
  const auto item = [](const std::string& mode, const std::string& name, const std::string& id) {
    std::string bytes = mode + " " + name + '\0';
    for (std::size_t i = 0; i < id.size(); i += 2) bytes += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
    return bytes;
  };
  const auto commit = [&](const std::string& tree_bytes) {
    const std::string tree = repository.raw_object("tree", tree_bytes);
    return repository.raw_object(
        "commit", "tree " + tree + "\nauthor A <a@b> 1700000000 +0000\ncommitter A <a@b> 1700000000 +0000\n\nx\n");
  };
  const std::string at = repository.path().native() + "@";
  const auto refusal = [&](const std::string& tree_bytes) { return failure_of(at + commit(tree_bytes)); };
  const std::string inner = repository.raw_object("tree", item("100644", "config", blob));

  for (const std::string& name :
       std::vector<std::string>{".git", ".GIT", ".giT", "git~1", "GIT~1", ".git.", ".git ", ".git:x",
                                ".git::$INDEX_ALLOCATION", ".git\\x", ".g\xe2\x80\x8cit"}) {
    INFO(name);
    CHECK_THAT(refusal(item("40000", name, inner)), Contains("entry-not-representable: the tree entry") &&
                                                        Contains("would be taken for the repository's own .git"));
  }
  for (const std::string& name : std::vector<std::string>{"..", "."})
    CHECK_THAT(refusal(item("40000", name, inner)),
               Contains("path-escapes-root") && Contains("would leave its folder"));
  CHECK_THAT(refusal(item("100644", "a/b", blob)), Contains("'/' inside its name"));
  CHECK_THAT(refusal(item("100644", "/etc/passwd", blob)), Contains("'/' inside its name"));
  CHECK_THAT(refusal(item("100644", "", blob)), Contains("has no name"));
  CHECK_THAT(refusal(item("120000", ".gitmodules", blob)), Contains("is a symlink, which git refuses"));
  CHECK_THAT(refusal(item("100644", std::string(256, 'n'), blob)), Contains("longer than 255 bytes"));
  CHECK_THAT(refusal(item("10644", "odd", blob)), Contains("of no type that git knows"));
  CHECK_THAT(refusal(item("120000", "a", blob) + item("40000", "a", inner)), Contains("the name 'a' twice"));
  CHECK_THAT(refusal(item("100644", "b", blob) + item("100644", "a", blob)), Contains("out of order at 'a'"));
  CHECK_THAT(refusal("100644 cut\0short"), Contains("malformed"));
  CHECK_THAT(refusal(item("100644", "gone", std::string(40, '7'))), Contains("cannot read 'gone': blob-missing"));
  CHECK_THAT(refusal(item("40000", "gone", std::string(40, '7'))), Contains("cannot read the folder 'gone'"));
  CHECK_THAT(refusal(item("40000", "blob", blob)), Contains("is a blob where a tree is expected"));
  const std::string empty_target = repository.raw_object("blob", "");
  CHECK_THAT(refusal(item("120000", "link", empty_target)), Contains("a target that no symlink can have"));
  CHECK_THAT(refusal(item("120000", "link", repository.raw_object("blob", std::string(5000, 'x')))),
             Contains("more than Linux allows"));

  SECTION("odd modes, padded modes and empty folders are what a checkout makes of them") {
    const std::string empty = repository.raw_object("tree", "");
    const Imported imported = import(at + commit(item("0100664", "a", blob) + item("100775", "b", blob) +
                                                 item("040000", "c", empty) + item("100600", "d\\e", blob)));
    CHECK(imported.tree.items.at("a").entry.mode == 0644);
    CHECK(imported.tree.items.at("b").entry.mode == 0755);
    CHECK_FALSE(imported.tree.items.contains("c"));
    CHECK(imported.tree.items.contains("d\\e"));
    Delivered delivered(imported);
    CHECK(delivered.git({"status", "--porcelain"}) == "");
  }
  SECTION("a tree that unfolds into too much is refused before it is walked") {
    std::string level = inner, hollow = repository.raw_object("tree", "");
    for (int depth = 0; depth < 12; ++depth) {
      std::string wide, bare;
      for (char c = 'a'; c <= 'j'; ++c) {
        wide += item("40000", std::string(1, c), level);
        bare += item("40000", std::string(1, c), hollow);
      }
      level = repository.raw_object("tree", wide);
      hollow = repository.raw_object("tree", bare);
    }
    CHECK_THAT(refusal(item("40000", "bomb", level)), Contains("entry-limit: the tree has more than 20000000 entries"));
    CHECK(failure_of(at + commit(item("40000", "bomb", hollow))) == "");
    std::string deep = inner;
    for (int depth = 0; depth < 30; ++depth)
      deep = repository.raw_object("tree", item("40000", std::string(200, 'd'), deep));
    CHECK_THAT(refusal(item("40000", "deep", deep)),
               Contains("path-limit: the tree has a path longer than 4096 bytes"));
  }
}

TEST_CASE("repositories that cannot be read are refused plainly, without waiting for them", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository sha256(scratch.path() / "sha256", {"--object-format=sha256"});
  CHECK_THAT(failure_of(sha256.path().native()), Contains("'sha256'") && Contains("git archive"));
  TestRepository repository(scratch.path() / "r");
  repository.write("a", "a\n");
  repository.commit("a");
  fs::remove(repository.path() / ".git/HEAD");
  ::mkfifo((repository.path() / ".git/HEAD").c_str(), 0600);
  CHECK_THAT(failure_of(repository.path().native()), Contains("is no regular file"));
  fs::remove(repository.path() / ".git/HEAD");
  std::ofstream(repository.path() / ".git/HEAD") << "ref: refs/heads/main\n";
  ::mkfifo((repository.path() / ".git/objects/pack/pack-x.idx").c_str(), 0600);
  CHECK_THAT(failure_of(repository.path().native()), Contains("neither a file nor a folder"));
  fs::remove(repository.path() / ".git/objects/pack/pack-x.idx");
  // A byte of an object changed behind git's back.
  const std::string tree = repository.git({"rev-parse", "HEAD:a"});
  const fs::path object = repository.path() / ".git/objects" / tree.substr(0, 2) / tree.substr(2);
  fs::permissions(object, fs::perms(0644));
  std::ofstream(object, std::ios::binary) << read_file(
      repository.path() / ".git/objects" / repository.git({"hash-object", "-w", "--stdin"}, "other").insert(2, "/"));
  CHECK_THAT(failure_of(repository.path().native()), Contains("cannot read 'a'"));
}

TEST_CASE("an object file that breaks off anywhere is refused, without waiting for the rest", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("a", "a\n");
  repository.commit("a");
  const std::string blob = repository.git({"rev-parse", "HEAD:a"});
  const fs::path object = repository.path() / ".git/objects" / blob.substr(0, 2) / blob.substr(2);
  const std::string whole = read_file(object);
  fs::permissions(object, fs::perms(0644));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(object, std::ios::binary) << whole.substr(0, size);
    CHECK_THAT(failure_of(repository.path().native()), Contains("layer-damaged") && Contains("it ends in the middle"));
  }
  std::ofstream(object, std::ios::binary) << whole + "x";
  CHECK_THAT(failure_of(repository.path().native()), Contains("bytes follow its end"));
  std::ofstream(object, std::ios::binary) << whole;
  CHECK(failure_of(repository.path().native()) == "");
}

TEST_CASE("a revision that is no commit is refused as one that is missing", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("a", "a\n");
  repository.commit("a");
  repository.git({"tag", "-a", "-m", "t", "blob", "HEAD:a"});
  repository.git({"tag", "tree", "HEAD^{tree}"});
  CHECK_THAT(failure_of(repository.path().native() + "@blob"), Contains("reference-missing: 'blob' names a blob"));
  CHECK_THAT(failure_of(repository.path().native() + "@tree"), Contains("reference-missing: 'tree' names a tree"));
}

TEST_CASE("a small object that says it unpacks to more than the memory is refused unread", "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  // A zlib stream with one stored block: the header of a loose object of nine petabytes.
  const std::string head("blob 9000000000000000", 22);
  std::string stream("\x78\x01\x01", 3);
  stream += {static_cast<char>(head.size()), '\0', static_cast<char>(~head.size()), '\xff'};
  std::uint32_t a = 1, b = 0;
  for (const char c : head) a = (a + static_cast<unsigned char>(c)) % 65521, b = (b + a) % 65521;
  stream += head;
  for (const std::uint32_t part : {b, a}) stream += {static_cast<char>(part >> 8), static_cast<char>(part & 0xff)};
  const std::string id = std::string(40, 'b');
  fs::create_directories(repository.path() / ".git/objects/bb");
  std::ofstream(repository.path() / ".git/objects/bb" / id.substr(2), std::ios::binary) << stream;
  repository.git({"update-index", "--add", "--cacheinfo", "100644," + id + ",bomb"});
  const std::string tree = repository.git({"write-tree", "--missing-ok"});
  const std::string commit = repository.git({"commit-tree", "-m", "x", tree});
  CHECK_THAT(failure_of(repository.path().native() + "@" + commit),
             Contains("the file 'bomb' has 9000000000000000 bytes, more than half of this host's memory"));
}

TEST_CASE("full history of a shallow clone keeps the boundary, and refs that git ignores are left out",
          "[layers][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  for (int i = 0; i < 4; ++i) repository.commit("c" + std::to_string(i));
  const fs::path shallow = scratch.path() / "shallow";
  repository.git({"clone", "-q", "--depth", "2", "file://" + repository.path().native(), shallow.native()});
  std::ofstream(shallow / ".git/packed-refs", std::ios::app)
      << repository.git({"rev-parse", "HEAD"}) << " refs/heads/../../evil\n";
  const Imported imported = import(shallow.native() + "?history=full");
  Delivered delivered(imported);
  delivered.check_sound();
  CHECK(bytes_of(imported, ".git/shallow") == repository.git({"rev-parse", "HEAD~1"}) + "\n");
  CHECK(imported.tree.text().find("evil") == std::string::npos);
}

TEST_CASE("transports that run programs are refused, and credentials stay out of messages", "[layers][git]") {
  for (const std::string url : {"ext::sh -c touch% /tmp/x", "fd::3", "foo://host/x", "rsync://host/x"})
    CHECK_THAT(failure_of(url), Contains("does not fetch git repositories over") && Contains("run programs"));
  CHECK_THAT(failure_of("file://other.host/x"), Contains("names a file of this host"));
  CHECK_THAT(failure_of("https://user:SECRET@127.0.0.1:1/repo?history=none"), !Contains("SECRET"));
  const GitRequest scp = GitRequest::parse("git@example.invalid:org/repo@v1?history=full");
  CHECK(scp.location == "git@example.invalid:org/repo");
  CHECK(scp.revision == "v1");
  CHECK(scp.history == GitHistory::Full);
  const GitRequest ssh = GitRequest::parse("ssh://git@example.invalid/org/repo");
  CHECK(ssh.location == "ssh://git@example.invalid/org/repo");
  CHECK(ssh.revision == "HEAD");
  CHECK_THROWS_AS(GitRequest::parse("/x?history=some"), Error);
}

}  // namespace
}  // namespace dsec::layers
