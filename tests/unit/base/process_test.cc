#include <catch2/catch.hpp>

#include "core/base/child_process.h"
#include "core/base/error.h"

namespace dsec {
namespace {

TEST_CASE("streams and exit code of a command come back", "[base][process]") {
  const CommandResult result = run_command({.argv = {"sh", "-c", "cat; echo err >&2; exit 3"}}, "in");
  CHECK(result.out == "in");
  CHECK(result.err == "err\n");
  CHECK(result.status.code == 3);
}

TEST_CASE("a command that cannot be executed is named with its errno", "[base][process]") {
  try {
    run_command({.argv = {"no-such-program-here"}});
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.message() == "execute 'no-such-program-here': No such file or directory (ENOENT)");
  }
}

TEST_CASE("a large input to a command that does not read is no deadlock", "[base][process]") {
  const CommandResult result =
      run_command({.argv = {"sh", "-c", "exec 0<&-; sleep 0.1; echo done"}}, std::string(1 << 20, 'x'));
  CHECK(result.out == "done\n");
}

TEST_CASE("a deadly signal is told apart from an exit code", "[base][process]") {
  const CommandResult result = run_command({.argv = {"sh", "-c", "kill -9 $$"}});
  CHECK(result.status.signal == 9);
  CHECK(result.status.shell_code() == 137);
}

}  // namespace
}  // namespace dsec
