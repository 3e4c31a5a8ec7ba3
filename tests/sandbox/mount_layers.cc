#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>

#include "core/base/mount.h"
#include "core/engine/home.h"
#include "layers/compose/export_layer.h"
#include "layers/compose/layer_diff.h"
#include "layers/mount/erofs_mount.h"
#include "layers/mount/layer_mounter.h"
#include "tests/support/skip.h"
#include "tests/support/test_images.h"

using namespace dsec;
using namespace dsec::testing;
namespace fs = std::filesystem;

namespace {

// A home of its own, gone with everything it mounted at the end of the test.
struct Place {
  TempDirectory directory{fs::temp_directory_path()};
  engine::Home home = engine::Home::open(directory.path() / "home");
  ImageStore store{directory.path() / "blobs"};
  std::unique_ptr<engine::LayerMounter> mounter = layers::make_layer_mounter(home, store);

  ~Place() {
    try {
      mounter->unmount_unused({});
    } catch (const Error& error) {
      std::cerr << error.message() << '\n';
    }
  }
  fs::path target(const char* name) const {
    make_directories(directory.path() / name);
    return directory.path() / name;
  }
};

std::string content(int directory, const char* name) {
  const UniqueFd file(::openat(directory, name, O_RDONLY | O_CLOEXEC));
  return file ? read_all(file.get()) : "(missing)";
}

std::string mount_table() { return read_file("/proc/self/mountinfo"); }

}  // namespace

TEST_CASE("opened layers are readable through their descriptors and nobody's mount table grows", "[sandbox][mount]") {
  Place place;
  const auto base = place.store.add_layer("base/one", {{dir("etc"), file("etc/name", "base")}});
  const auto tools = place.store.add_layer("toolkit/two", {{file("tool", "t")}});
  const std::vector<engine::StoredLayer> stack = {base, tools};
  const engine::LayerStack opened = place.mounter->open(stack, false);
  REQUIRE(opened.lowers.size() >= 2);
  CHECK(content(opened.lowers[0].get(), "etc/name") == "base");
  CHECK(content(opened.lowers[1].get(), "tool") == "t");
  CHECK(mount_table().find("erofs") == std::string::npos);
}

TEST_CASE("a composed tree shows the upper layer's files and hides deletions", "[sandbox][mount]") {
  Place place;
  const auto base = place.store.add_layer(
      "base/one", {{dir("etc"), file("etc/name", "base"), file("etc/gone", "x"), dir("old"), file("old/file", "x")}});
  const auto work = place.store.add_layer(
      "workspace/two", {{dir("etc"), file("etc/name", "work"), whiteout("etc/gone"), opaque_dir("old")}});
  const std::vector<engine::StoredLayer> stack = {base, work};
  const fs::path target = place.target("tree");
  place.mounter->mount_at(stack, target);
  CHECK(read_file(target / "etc/name") == "work");
  CHECK_FALSE(fs::exists(fs::symlink_status(target / "etc/gone")));
  CHECK(fs::is_empty(target / "old"));
  place.mounter->unmount_at(target);
  CHECK(fs::is_empty(target));
  REQUIRE_THROWS_WITH(place.mounter->unmount_at(target), Catch::Contains("no layers are mounted there"));
}

TEST_CASE("a layer mounted alone shows none of its whiteouts", "[sandbox][mount]") {
  Place place;
  const auto work = place.store.add_layer(
      "workspace/two", {{{.path = "etc", .type = '5', .mode = 0755, .xattrs = {{"trusted.overlay.origin", ""}}},
                         whiteout("etc/gone"),
                         file("etc/here", "1")}});
  const fs::path target = place.target("tree");
  place.mounter->mount_at(std::vector{work}, target);
  CHECK(fs::exists(target / "etc/here"));
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator(target / "etc")) names.push_back(entry.path().filename());
  CHECK(names == std::vector<fs::path>{"here"});
  place.mounter->unmount_at(target);
}

TEST_CASE("the same image twice in a stack is mounted once", "[sandbox][mount]") {
  Place place;
  const auto one = place.store.add_layer("base/one", {{file("a", "1")}});
  const auto two = place.store.add_layer("workspace/two", {{file("b", "2")}});
  const auto again = place.store.add_layer("toolkit/three", {{file("a", "1")}});
  const fs::path target = place.target("tree");
  place.mounter->mount_at(std::vector{one, two, again}, target);
  CHECK(read_file(target / "a") == "1");
  CHECK(read_file(target / "b") == "2");
  place.mounter->unmount_at(target);
}

TEST_CASE("unmounting what is unused keeps what is needed and what is open", "[sandbox][mount]") {
  Place place;
  const auto one = place.store.add_layer("base/one", {{file("a", "1")}});
  const auto two = place.store.add_layer("workspace/two", {{file("b", "2")}});
  const engine::LayerStack opened = place.mounter->open(std::vector{one, two}, false);
  const std::vector<Digest> needed = {one.manifest.images[0].blob(BlobRole::Meta).digest};
  CHECK(place.mounter->unmount_unused(needed) == 1);
  CHECK(content(opened.lowers[1].get(), "b") == "2");
  CHECK(is_mount_root(place.home.run() / "mntns"));
  CHECK(place.mounter->unmount_unused({}) == 1);
  CHECK_FALSE(is_mount_root(place.home.run() / "mntns"));
  CHECK(mount_table().find(place.directory.path().native()) == std::string::npos);
}

TEST_CASE("another mounter of the same home uses the mounts that are there", "[sandbox][mount]") {
  Place place;
  const auto one = place.store.add_layer("base/one", {{file("a", "1")}});
  const auto device = [](const engine::LayerStack& stack) {
    struct stat facts {};
    REQUIRE(::fstat(stack.lowers[0].get(), &facts) == 0);
    return facts.st_dev;
  };
  const engine::LayerStack mine = place.mounter->open(std::vector{one}, false);
  const auto other = layers::make_layer_mounter(place.home, place.store);
  CHECK(device(other->open(std::vector{one}, false)) == device(mine));
  other->unmount_unused({});
  // The first mounter's thread is in a namespace that is not pinned any more; it moves on.
  const engine::LayerStack later = place.mounter->open(std::vector{one}, false);
  CHECK(device(other->open(std::vector{one}, false)) == device(later));
}

TEST_CASE("an image mounts through loop devices too, and they free themselves", "[sandbox][mount]") {
  if (!fs::exists("/dev/loop-control")) SKIP_BECAUSE("no /dev/loop-control");
  Place place;
  const auto one = place.store.add_layer("base/one", {{file("a", "content")}});
  const LayerImage& image = one.manifest.images[0];
  {
    const UniqueFd mount = layers::mount_erofs({place.store.blob_path(image.blob(BlobRole::Meta).digest),
                                                place.store.blob_path(image.blob(BlobRole::Data).digest)},
                                               layers::ErofsBacking::LoopDevice);
    CHECK(content(mount.get(), "a") == "content");
  }
  const CommandResult left = run_command({.argv = {"losetup", "--list", "--noheadings", "--output", "BACK-FILE"}});
  CHECK(left.out.find(place.directory.path().native()) == std::string::npos);
}

TEST_CASE("a store on a stacked filesystem is mounted through loop devices, which gc gives back", "[sandbox][mount]") {
  if (!fs::exists("/dev/loop-control")) SKIP_BECAUSE("no /dev/loop-control");
  Place place;
  FsContext context("tmpfs");
  context.create();
  const UniqueFd below = context.mount(0);
  FsContext other("tmpfs");
  other.create();
  const UniqueFd writable = other.mount(0);
  REQUIRE(::mkdirat(writable.get(), "upper", 0755) == 0);
  REQUIRE(::mkdirat(writable.get(), "work", 0755) == 0);
  const int lowers[] = {below.get()};
  const Mount stacked =
      Mount::attach(make_overlay({.lowers = lowers, .writable = writable.get()}), place.target("stacked"));
  ImageStore store(stacked.target() / "blobs");
  const auto one = store.add_layer("base/one", {{file("a", "content")}});
  const auto mounter = layers::make_layer_mounter(place.home, store);
  const auto loops = [&] {
    const CommandResult listed = run_command({.argv = {"losetup", "--list", "--noheadings", "--output", "BACK-FILE"}});
    std::size_t count = 0;
    for (const Blob& blob : one.manifest.images[0].blobs)
      count += listed.out.find(blob.digest.hex()) != std::string::npos;
    return count;
  };
  CHECK(content(mounter->open(std::vector{one}, false).lowers[0].get(), "a") == "content");
  CHECK(loops() == 2);
  CHECK(mounter->unmount_unused({}) == 1);
  CHECK(loops() == 0);
}

TEST_CASE("a damaged image is refused with what the kernel says", "[sandbox][mount]") {
  Place place;
  auto one = place.store.add_layer("base/one", {{file("a", "1")}});
  const fs::path meta = place.store.blob_path(one.manifest.images[0].blob(BlobRole::Meta).digest);
  write_file_atomic(meta, std::string(8192, '\0'));
  REQUIRE_THROWS_WITH(place.mounter->open(std::vector{one}, false),
                      Catch::Contains("mount erofs image") && Catch::Contains("EINVAL"));
}

TEST_CASE("directories that a layer has only implicitly keep the attributes of the layers below", "[sandbox][mount]") {
  Place place;
  const auto base = place.store.add_layer("base/one", {{dir("tmp", 01777),
                                                        dir("home"),
                                                        {.path = "home/user",
                                                         .type = '5',
                                                         .mode = 0700,
                                                         .uid = 1000,
                                                         .gid = 100,
                                                         .mtime = 5,
                                                         .xattrs = {{"user.k", "v"}}},
                                                        file("home/user/below")}});
  const auto work = place.store.add_layer(
      "workspace/two", {{dir("home"), dir("home/user"), file("home/user/above"), dir("tmp"), file("tmp/t")}},
      {"", "home", "home/user", "tmp"});
  const std::vector<engine::StoredLayer> stack = {base, work};
  const fs::path target = place.target("tree");
  // The second time everything is known and mounted already.
  for (int i = 0; i < 2; ++i) {
    place.mounter->mount_at(stack, target);
    struct stat facts {};
    REQUIRE(::stat((target / "home/user").c_str(), &facts) == 0);
    CHECK((facts.st_mode & 07777) == 0700);
    CHECK(facts.st_uid == 1000);
    CHECK(facts.st_gid == 100);
    CHECK(facts.st_mtime == 5);
    char value[8];
    CHECK(::getxattr((target / "home/user").c_str(), "user.k", value, sizeof value) == 1);
    REQUIRE(::stat((target / "tmp").c_str(), &facts) == 0);
    CHECK((facts.st_mode & 07777) == 01777);
    CHECK(fs::exists(target / "home/user/below"));
    CHECK(fs::exists(target / "home/user/above"));
    place.mounter->unmount_at(target);
  }
  // The fix-up stays as long as all layers of its stack are needed.
  std::vector<Digest> needed;
  for (const auto& layer : stack) needed.push_back(layer.manifest.images[0].blob(BlobRole::Meta).digest);
  CHECK(place.mounter->unmount_unused(needed) == 0);
  REQUIRE_NOTHROW(remove_tree(place.home.cache()));
  CHECK(place.mounter->open(stack, false).lowers.size() == 3);
  needed.pop_back();
  CHECK(place.mounter->unmount_unused(needed) == 1);
  CHECK(place.mounter->open(stack, false).lowers.size() == 3);
}

TEST_CASE("layers that contradict each other are refused by name unless that is accepted", "[sandbox][mount]") {
  Place place;
  const auto base = place.store.add_layer("base/one", {{dir("usr"), dir("usr/bin"), link_to("bin", "usr/bin")}});
  const auto tool = place.store.add_layer("toolkit/two", {{dir("bin"), file("bin/tool")}});
  const std::vector<engine::StoredLayer> stack = {base, tool};
  for (int i = 0; i < 2; ++i)
    REQUIRE_THROWS_WITH(place.mounter->open(stack, false),
                        Catch::Contains("toolkit/two has a directory over a symlink of base/one at 'bin'"));
  CHECK(place.mounter->open(stack, true).lowers.size() == 2);
  CHECK(place.mounter->conflicts(stack).size() == 1);
}

TEST_CASE("a layer from elsewhere is checked before the kernel mounts it", "[sandbox][mount]") {
  Place place;
  auto good = place.store.add_layer("base/good", {{file("a", "1")}});
  auto evil = place.store.add_layer(
      "base/evil", {{{.path = "d", .type = '5', .mode = 0755, .xattrs = {{"trusted.overlay.redirect", "/etc"}}}}});
  good.trusted = evil.trusted = false;
  CHECK(place.mounter->open(std::vector{good}, false).lowers.size() == 1);
  CHECK(place.store.trusted == std::vector<Digest>{good.digest});
  (void)place.mounter->open(std::vector{good}, false);
  CHECK(place.store.trusted.size() == 1);
  REQUIRE_THROWS_WITH(place.mounter->open(std::vector{evil}, false), Catch::Contains("trusted.overlay.redirect"));
  CHECK(place.store.trusted.size() == 1);
}

TEST_CASE("a compressed layer mounts, and is compared and exported through a mount", "[sandbox][mount]") {
  Place place;
  const std::string text(200000, 'a');
  const auto one = place.store.add_layer("base/one", {{file("f", text), file("same", text)}}, {}, "lz4");
  const auto two =
      place.store.add_layer("base/two", {{file("f", text.substr(1) + "b"), file("same", text)}}, {}, "lz4");
  CHECK(content(place.mounter->open(std::vector{one}, false).lowers[0].get(), "f") == text);
  std::vector<std::string> changed;
  layers::diff_layers(place.store, one, two, [&](const auto& difference) { changed.push_back(difference.path); });
  CHECK(changed == std::vector<std::string>{"f"});
  const UniqueFd tar = open_file(place.directory.path() / "tar", O_RDWR | O_CREAT);
  Progress quiet;
  layers::export_layer(place.store, one, tar.get(), quiet);
  const CommandResult unpacked = run_command({.argv = {"tar", "-xOf", (place.directory.path() / "tar").native(), "f"}});
  CHECK(unpacked.out == text);
}

TEST_CASE("opening a mounted stack of five layers costs little", "[sandbox][mount]") {
  Place place;
  std::vector<engine::StoredLayer> stack;
  for (int i = 0; i < 5; ++i)
    stack.push_back(place.store.add_layer("toolkit/t" + std::to_string(i), {{file("f" + std::to_string(i), "1")}}));
  (void)place.mounter->open(stack, false);
  std::vector<engine::LayerStack> opened;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) opened.push_back(place.mounter->open(stack, false));
  const auto spent = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  std::cout << "opening 5 mounted layers: " << static_cast<double>(spent.count()) / 100 << " us" << std::endl;
  CHECK(spent < std::chrono::milliseconds(500));  // a mount anew costs more
}

TEST_CASE("twenty processes open a stack while another unmounts: all succeed and nothing is left", "[sandbox][mount]") {
  Place place;
  std::vector<engine::StoredLayer> stack;
  for (int i = 0; i < 3; ++i)
    stack.push_back(place.store.add_layer("toolkit/t" + std::to_string(i), {{file("f" + std::to_string(i), "1")}}));
  const auto in_child = [&](const auto& action) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid != 0) return pid;
    int code = 0;
    try {
      const auto mounter = layers::make_layer_mounter(place.home, place.store);
      action(*mounter);
    } catch (const Error& error) {
      std::cerr << error.message() << '\n';
      code = 1;
    }
    std::cerr.flush();
    ::_exit(code);
  };
  std::vector<pid_t> openers;
  for (int i = 0; i < 20; ++i)
    openers.push_back(in_child([&](engine::LayerMounter& mounter) {
      for (int round = 0; round < 10; ++round) {
        const engine::LayerStack opened = mounter.open(stack, false);
        if (content(opened.lowers[2].get(), "f2") != "1") throw failure("the wrong tree came out");
      }
    }));
  const pid_t collector = in_child([&](engine::LayerMounter& mounter) {
    for (int round = 0; round < 100; ++round) {
      mounter.unmount_unused({});
      ::usleep(2000);
    }
  });
  openers.push_back(collector);
  for (const pid_t pid : openers) {
    int status = -1;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
  }
  place.mounter->unmount_unused({});
  CHECK(mount_table().find(place.directory.path().native()) == std::string::npos);
}

TEST_CASE("what processes killed in the middle leave behind is used or removed by the next one", "[sandbox][mount]") {
  Place place;
  const auto one = place.store.add_layer("base/one", {{file("a", "1")}});
  for (int round = 0; round < 25; ++round) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      const auto mounter = layers::make_layer_mounter(place.home, place.store);
      for (;;) {
        (void)mounter->open(std::vector{one}, false);
        mounter->unmount_unused({});
      }
    }
    ::usleep(1000 + static_cast<useconds_t>(round) * 700);
    ::kill(pid, SIGKILL);
    REQUIRE(::waitpid(pid, nullptr, 0) == pid);
    CHECK(content(place.mounter->open(std::vector{one}, false).lowers[0].get(), "a") == "1");
    if (round % 2) place.mounter->unmount_unused({});
  }
  place.mounter->unmount_unused({});
  CHECK(mount_table().find(place.directory.path().native()) == std::string::npos);
}

TEST_CASE("a process in a mount namespace of its own still opens layers", "[sandbox][mount]") {
  Place place;
  const auto one = place.store.add_layer("base/one", {{file("a", "1")}});
  (void)place.mounter->open(std::vector{one}, false);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    int code = 1;
    try {
      if (::unshare(CLONE_NEWNS) == 0) {
        set_propagation("/", Propagation::Private, Submounts::With);
        const auto mounter = layers::make_layer_mounter(place.home, place.store);
        code = content(mounter->open(std::vector{one}, false).lowers[0].get(), "a") == "1" ? 0 : 1;
        mounter->unmount_unused({});
      }
    } catch (const Error& error) {
      std::cerr << error.message() << '\n';
    }
    ::_exit(code);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
}
