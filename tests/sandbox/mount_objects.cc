#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <vector>

#include "core/base/files.h"
#include "core/base/mount.h"
#include "tests/support/skip.h"

using namespace dsec;
namespace fs = std::filesystem;

namespace {

UniqueFd tmpfs() {
  FsContext context("tmpfs");
  context.create();
  return context.mount(0);
}

void put(int directory, const char* name, std::string_view content) {
  const UniqueFd file(::openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  REQUIRE(file);
  write_all(file.get(), content);
}

std::vector<OverlaySpec::Way> ways() {
  std::vector<OverlaySpec::Way> ways = {OverlaySpec::Way::Names, OverlaySpec::Way::Detect};
  return ways;
}

}  // namespace

TEST_CASE("an overlay of detached mounts shows the upper layer's files, both ways of stacking", "[sandbox][mount]") {
  const TempDirectory home(fs::temp_directory_path());
  for (const OverlaySpec::Way way : ways()) {
    const UniqueFd below = tmpfs(), above = tmpfs(), writable = tmpfs();
    put(below.get(), "both", "below");
    put(below.get(), "only-below", "x");
    put(above.get(), "both", "above");
    REQUIRE(::mkdirat(writable.get(), "upper", 0755) == 0);
    REQUIRE(::mkdirat(writable.get(), "work", 0755) == 0);
    const std::vector<int> lowers = {below.get(), above.get()};

    UniqueFd overlay = make_overlay({.lowers = lowers, .writable = writable.get(), .skip_syncs = true, .way = way});
    Mount mount = Mount::attach(std::move(overlay), home.path());
    CHECK(read_file(home.path() / "both") == "above");
    CHECK(read_file(home.path() / "only-below") == "x");
    write_file_atomic(home.path() / "new", "written");
    mount.unmount();
    CHECK_FALSE(is_mount_root(home.path()));
  }
}

TEST_CASE("an overlay without a writable layer refuses writing, both ways of stacking", "[sandbox][mount]") {
  for (const OverlaySpec::Way way : ways()) {
    const UniqueFd below = tmpfs(), above = tmpfs();
    const std::vector<int> lowers = {below.get(), above.get()};
    const UniqueFd overlay = make_overlay({.lowers = lowers, .attributes = MountFlags::kReadOnly, .way = way});
    CHECK(::openat(overlay.get(), "new", O_WRONLY | O_CREAT | O_CLOEXEC, 0644) == -1);
    CHECK(errno == EROFS);
  }
}

TEST_CASE("more layers than overlayfs takes are refused with the number it takes", "[sandbox][mount]") {
  const std::vector<int> lowers(501, 0);
  REQUIRE_THROWS_WITH(make_overlay({.lowers = lowers}), Catch::Contains("cannot stack 501 layers"));
}

TEST_CASE("500 layers stack, both ways", "[sandbox][mount]") {
  for (const OverlaySpec::Way way : ways()) {
    std::vector<UniqueFd> mounts;
    std::vector<int> lowers;
    for (int i = 0; i < 500; ++i) {
      mounts.push_back(tmpfs());
      lowers.push_back(mounts.back().get());
    }
    put(lowers.front(), "bottom", "x");
    const UniqueFd overlay = make_overlay({.lowers = lowers, .way = way});
    CHECK(::faccessat(overlay.get(), "bottom", R_OK, 0) == 0);
  }
}

TEST_CASE("a refused mount tells what the kernel logged and the errno", "[sandbox][mount]") {
  FsContext context("tmpfs");  // overlay before 6.5 hears of an option only when it is mounted
  REQUIRE_THROWS_WITH(context.set("no_such_option", "1"),
                      Catch::Contains("no_such_option") && Catch::Contains("EINVAL"));
  REQUIRE_THROWS_WITH(FsContext("no-such-filesystem"), Catch::Contains("ENODEV"));
  REQUIRE_THROWS_WITH(context.set("size", std::string(256, 'x')), Catch::Contains("255 bytes"));
}

TEST_CASE("a mount that goes out of scope leaves nothing mounted", "[sandbox][mount]") {
  const TempDirectory place(fs::temp_directory_path());
  {
    const Mount mount = Mount::attach(tmpfs(), place.path());
    CHECK(is_mount_root(place.path()));
  }
  CHECK_FALSE(is_mount_root(place.path()));
}
