#include "layers/branch/patch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/files.h"
#include "layers/branch/tree_changes.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

/// A lower tree and the writable layer over it.
struct Trees {
  TempDirectory work{fs::temp_directory_path()};
  fs::path lower = work.path() / "lower", upper = work.path() / "upper";

  Trees() {
    fs::create_directory(lower);
    fs::create_directory(upper);
  }
  static void put(const fs::path& path, const std::string& content, mode_t mode = 0644) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    ::chmod(path.c_str(), mode);
  }
  void remove(const std::string& path) const {
    fs::create_directories((upper / path).parent_path());
    REQUIRE(::mknod((upper / path).c_str(), S_IFCHR, 0) == 0);
  }
  void each(const std::function<void(const ChangedFile&)>& visit) const {
    const UniqueFd above = open_file(upper, O_RDONLY | O_DIRECTORY), below = open_file(lower, O_RDONLY | O_DIRECTORY);
    compare_trees(above.get(), below.get(), visit);
  }
  std::string patch() const {
    const UniqueFd out(::memfd_create("patch", MFD_CLOEXEC));
    each([&](const ChangedFile& file) { write_patch(file, out.get()); });
    ::lseek(out.get(), 0, SEEK_SET);
    return read_all(out.get());
  }
  std::map<std::string, engine::FileChange> counts() const {
    std::map<std::string, engine::FileChange> found;
    each([&](const ChangedFile& file) {
      if (const auto change = measure(file)) found[change->change.path] = *change;
    });
    return found;
  }
};

TEST_CASE_METHOD(Trees, "a patch says what git would say", "[layers][branch]") {
  put(lower / "a", "1\n2\n3\n");
  put(upper / "a", "1\nzwei\n3");
  put(upper / "new", "hello\n", 0755);
  put(lower / "old", "gone\n");
  remove("old");
  CHECK(patch() ==
        "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-2\n-3\n+zwei\n+3\n\\ No newline at end of file\n"
        "diff --git a/new b/new\nnew file mode 100755\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+hello\n"
        "diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n");
  CHECK(counts().at("/a").added_lines == 2);
  CHECK(counts().at("/a").deleted_lines == 2);
}

TEST_CASE_METHOD(Trees, "what was copied up but is the same is no change, a mode is one", "[layers][branch]") {
  put(lower / "same", "x\n");
  put(upper / "same", "x\n");
  put(lower / "mode", "x\n");
  put(upper / "mode", "x\n", 0755);
  CHECK(patch() == "diff --git a/mode b/mode\nold mode 100644\nnew mode 100755\n");
  CHECK(counts().size() == 1);
}

TEST_CASE_METHOD(Trees, "a directory that goes takes its files, one that comes over a file replaces it",
                 "[layers][branch]") {
  put(lower / "dir/x/file", "f\n");
  remove("dir");
  put(lower / "turned", "was a file\n");
  put(upper / "turned/inside", "i\n");
  put(lower / "other/a", "a\n");
  put(upper / "other", "now a file\n");
  using Kind = engine::Change::Kind;
  const auto found = counts();
  CHECK(found.size() == 5);
  CHECK(found.at("/dir/x/file").change.kind == Kind::Deleted);
  CHECK(found.at("/turned").change.kind == Kind::Deleted);
  CHECK(found.at("/turned/inside").change.kind == Kind::Added);
  CHECK(found.at("/other/a").change.kind == Kind::Deleted);
  CHECK(found.at("/other").change.kind == Kind::Added);
}

TEST_CASE_METHOD(Trees, "symlinks are files of their target, and a change of type is two patches", "[layers][branch]") {
  put(lower / "was", "text\n");
  fs::create_symlink("target", upper / "was");
  CHECK(patch() ==
        "diff --git a/was b/was\ndeleted file mode 100644\n--- a/was\n+++ /dev/null\n@@ -1 +0,0 @@\n-text\n"
        "diff --git a/was b/was\nnew file mode 120000\n--- /dev/null\n+++ b/was\n@@ -0,0 +1 @@\n+target\n"
        "\\ No newline at end of file\n");
}

TEST_CASE_METHOD(Trees, "binary files and devices are named and passed over", "[layers][branch]") {
  put(lower / "image", std::string("a\0b", 3));
  put(upper / "image", std::string("a\0cd", 4));
  put(upper / "big", std::string((32 << 20) + 1, 'x'));
  REQUIRE(::mkfifo((upper / "pipe").c_str(), 0600) == 0);
  CHECK(patch() ==
        "# /big: binary contents, which this patch leaves out: added, 33554433 bytes\n"
        "# /image: binary contents, which this patch leaves out: 3 -> 4 bytes\n"
        "# /pipe: is or was no regular file, which no patch can say\n");
  CHECK(counts().at("/image").binary);
  CHECK(counts().at("/image").bytes_after == 4);
}

TEST_CASE_METHOD(Trees, "names are quoted as git quotes them", "[layers][branch]") {
  put(upper / "a b", "x\n");
  put(upper / "q\"\n\\\x01", "x\n");
  put(upper / "\xc3\xa9", "x\n");
  const std::string text = patch();
  CHECK(text.find("+++ b/a b\t\n") != std::string::npos);
  CHECK(text.find("+++ \"b/q\\\"\\n\\\\\\001\"\n") != std::string::npos);
  CHECK(text.find("+++ b/\xc3\xa9\n") != std::string::npos);
}

}  // namespace
}  // namespace dsec::layers
