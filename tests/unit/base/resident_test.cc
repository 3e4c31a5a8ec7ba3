#include "core/base/resident.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <stop_token>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"

using namespace dsec;

TEST_CASE("a socket is its owner's alone, and files that other threads make meanwhile are as they want them",
          "[resident]") {
  const TempDirectory run(std::filesystem::temp_directory_path());
  const Resident nobody{.title = "nobody",
                        .program = "no-such-program",
                        .run = run.path(),
                        .socket = "socket",
                        .lock = "lock",
                        .log = "log"};
  const mode_t before = ::umask(022);
  {
    const std::jthread starts([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        try {
          start_resident(nobody, {});
        } catch (const Error&) {
          // There is no such program; it listens all the same.
        }
      }
    });
    int wrong = 0;
    for (int i = 0; i < 20'000; ++i) {
      const std::string name = run.path() / "directory";
      struct stat made = {};
      REQUIRE((::mkdir(name.c_str(), 0755) == 0 && ::stat(name.c_str(), &made) == 0 && ::rmdir(name.c_str()) == 0));
      wrong += (made.st_mode & 0777) != 0755;
    }
    CHECK(wrong == 0);
  }
  struct stat socket = {};
  REQUIRE(::stat((run.path() / "socket").c_str(), &socket) == 0);
  CHECK((S_ISSOCK(socket.st_mode) && (socket.st_mode & 0777) == 0600));
  CHECK(::umask(before) == 022);
}
