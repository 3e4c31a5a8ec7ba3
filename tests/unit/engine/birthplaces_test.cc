#include "core/engine/birthplaces.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;

TEST_CASE("spread directories are where they were asked for, and nothing stays where they were born", "[births]") {
  const TempDirectory place(fs::temp_directory_path());
  const Home home = Home::open(place.path() / "home");
  for (int i = 0; i < 100; ++i) {
    const fs::path target = home.sandboxes() / ("d" + std::to_string(i));
    make_spread_directory(home, target, target.native());
    struct stat info = {};
    REQUIRE(::stat(target.c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == 0700);
    CHECK(fs::is_empty(target));
  }
  std::size_t places = 0;
  for (const auto& one : fs::directory_iterator(home.run() / "births")) {
    ++places;
    CHECK(fs::is_empty(one.path()));
  }
  CHECK(places > 10);
}

TEST_CASE("where nothing can be born the directory is made in place", "[births]") {
  const TempDirectory place(fs::temp_directory_path());
  const Home home = Home::open(place.path() / "home");
  std::ofstream(home.run() / "births") << "in the way";
  make_spread_directory(home, home.sandboxes() / "here", "key");
  CHECK(fs::is_directory(home.sandboxes() / "here"));
  CHECK_THROWS_AS(make_spread_directory(home, home.sandboxes() / "no/such", "key"), Error);
}

}  // namespace
}  // namespace dsec::engine
