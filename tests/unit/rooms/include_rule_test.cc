#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/unit/rooms/include_rule.h"

namespace dsec::test {
namespace {

using Faults = std::vector<std::string>;

std::string read_all(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool is_code(const std::filesystem::path& path) {
  return path.extension() == ".h" || path.extension() == ".cc" || path.extension() == ".c";
}

TEST_CASE("every include of the tree follows the arrows between the rooms", "[rooms]") {
  const std::filesystem::path root = DSEC_SOURCE_DIR;
  size_t files = 0;
  for (const char* top : {"cli", "core", "layers", "registry", "runners"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_code(entry.path())) continue;
      ++files;
      CHECK(include_faults(entry.path().lexically_relative(root).string(), read_all(entry.path())) == Faults{});
    }
  }
  CHECK(files > 10);
}

TEST_CASE("a sibling's header is found", "[rooms]") {
  CHECK(include_faults("layers/import.cc", "#include <string>\n#include \"registry/store.h\"\n") ==
        Faults{"layers/import.cc:2: layers may not include registry ('registry/store.h')"});
}

TEST_CASE("an arrow from below to above is found", "[rooms]") {
  CHECK(include_faults("core/base/error.cc", "#include \"core/model/limits.h\"\n").size() == 1);
  CHECK(include_faults("core/engine/engine.h", "#  include \"runners/container/runner.h\"\n").size() == 1);
  CHECK(include_faults("runners/a.cc", "#include \"cli/report.h\"\n").size() == 1);
  CHECK(include_faults("core/task/task.cc", "#include \"core/remote/client.h\"\n").size() == 1);
}

TEST_CASE("includes along the arrows are no fault", "[rooms]") {
  CHECK(include_faults("layers/import.cc",
                       "#include \"layers/import.h\"\n#include \"core/engine/ports.h\"\n"
                       "#include <archive.h>\n") == Faults{});
  CHECK(include_faults("cli/commands/import.cc",
                       "#include <CLI/CLI.hpp>\n#include \"layers/import.h\"\n#include \"core/engine/engine.h\"\n") ==
        Faults{});
  CHECK(include_faults("core/task/task.cc", "#include \"core/engine/engine.h\"\n") == Faults{});
}

TEST_CASE("only the wiring knows every type", "[rooms]") {
  const char* both = "#include \"layers/mounter.h\"\n#include \"registry/local_store.h\"\n";
  CHECK(include_faults("cli/wiring.cc", both) == Faults{});
  CHECK(
      include_faults("cli/commands/run.cc", both) ==
      Faults{"cli/commands/run.cc:2: only cli/wiring.cc knows types of more than one of layers, registry and runners"});
}

TEST_CASE("nothing includes tests", "[rooms]") {
  CHECK(include_faults("core/base/error.cc", "#include \"tests/support/skip.h\"\n") ==
        Faults{"core/base/error.cc:1: nothing includes tests"});
  CHECK(include_faults("tests/unit/base/a.cc", "#include \"tests/support/skip.h\"\n#include \"layers/a.h\"\n") ==
        Faults{});
}

TEST_CASE("an include that is not written from the root is found", "[rooms]") {
  CHECK(include_faults("core/base/error.cc", "#include \"error.h\"\n") ==
        Faults{"core/base/error.cc:1: 'error.h' is not written from the root of the tree"});
  CHECK(include_faults("core/base/error.cc", "#include <core/base/error.h>\n").size() == 1);
}

TEST_CASE("headers of libraries stay where they are wrapped", "[rooms]") {
  CHECK(include_faults("core/base/sqlite.h", "#include <sqlite3.h>\n") ==
        Faults{"core/base/sqlite.h:1: <sqlite3.h> belongs into a .cc file, not into a header"});
  CHECK(include_faults("layers/spec.h", "#include <yaml-cpp/yaml.h>\n").size() == 1);
  CHECK(include_faults("layers/git.h", "#include <git2.h>\n").size() == 1);
  CHECK(include_faults("core/base/json.h", "#include <nlohmann/json.hpp>\n").size() == 1);
  CHECK(include_faults("core/base/json.h", "#include <nlohmann/json_fwd.hpp>\n") == Faults{});
  CHECK(include_faults("layers/a.cc", "#include <CLI/CLI.hpp>\n") ==
        Faults{"layers/a.cc:1: <CLI/CLI.hpp> belongs into cli only"});
}

}  // namespace
}  // namespace dsec::test
