#include "tests/unit/rooms/include_rule.h"

#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace dsec::test {
namespace {

using Rooms = std::set<std::string>;

const Rooms kFloor = {"core/base", "core/http", "core/model", "core/engine"};

/// What each room may include besides itself.
const std::map<std::string, Rooms> kArrows = {
    {"core/base", {}},
    {"core/http", {"core/base"}},
    {"core/model", {"core/base"}},
    {"core/engine", {"core/base", "core/model"}},
    {"core/task", kFloor},
    {"core/remote", kFloor},
    {"layers", kFloor},
    {"registry", kFloor},
    {"runners", kFloor},
    {"cli",
     {"core/base", "core/http", "core/model", "core/engine", "core/task", "core/remote", "layers", "registry",
      "runners"}},
};

/// The rooms that meet only where they are wired together.
const Rooms kAdapters = {"layers", "registry", "runners"};
const std::set<std::string> kWiring = {"cli/wiring.h", "cli/wiring.cc", "cli/main.cc"};

/// A library is wrapped by one .cc: its headers would otherwise reach everybody who includes ours.
const std::regex kOnlyInSources(
    "(yaml-cpp/.*|git2(/.*)?\\.h|archive(_entry)?\\.h|sqlite3\\.h|curl/.*|seccomp\\.h|"
    "nlohmann/json\\.hpp|openssl/.*|spdlog/.*|boost/.*)");
const std::regex kOnlyInCli("CLI/.*");

std::string room_of(const std::string& path) {
  const auto first = path.find('/');
  if (first == std::string::npos) return {};
  const std::string top = path.substr(0, first);
  if (top != "core") return top;
  const auto second = path.find('/', first + 1);
  return second == std::string::npos ? top : path.substr(0, second);
}

bool is_source(const std::string& path) { return path.size() > 3 && path.compare(path.size() - 3, 3, ".cc") == 0; }

/// Empty when `includer` may include our own header `header`.
std::string own_header_fault(const std::string& includer, const std::string& header) {
  const std::string from = room_of(includer), to = room_of(header);
  if (to.empty()) return "'" + header + "' is not written from the root of the tree";
  if (to == from) return {};
  if (to == "tests") return "nothing includes tests";
  const auto arrows = kArrows.find(from);
  if (arrows == kArrows.end()) return "'" + from + "' is no room that the include rule knows";
  if (!arrows->second.count(to)) return from + " may not include " + to + " ('" + header + "')";
  return {};
}

std::string library_fault(const std::string& includer, const std::string& header) {
  if (std::regex_match(header, kOnlyInCli) && room_of(includer) != "cli")
    return "<" + header + "> belongs into cli only";
  if (std::regex_match(header, kOnlyInSources) && !is_source(includer))
    return "<" + header + "> belongs into a .cc file, not into a header";
  if (kArrows.count(room_of(header))) return "our own header <" + header + "> is included like one of the system";
  return {};
}

}  // namespace

std::vector<std::string> include_faults(const std::string& path, std::string_view text) {
  static const std::regex kInclude("^\\s*#\\s*include\\s*([<\"])([^>\"]+)[>\"].*");
  std::vector<std::string> faults;
  if (room_of(path) == "tests") return faults;
  Rooms adapters;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_match(line, match, kInclude)) continue;
    const std::string header = match[2];
    const auto add = [&](const std::string& why) {
      if (!why.empty()) faults.push_back(path + ":" + std::to_string(number) + ": " + why);
    };
    if (match[1] == "<") {
      add(library_fault(path, header));
      continue;
    }
    add(own_header_fault(path, header));
    if (room_of(path) != "cli" || kWiring.count(path) || !kAdapters.count(room_of(header))) continue;
    if (adapters.insert(room_of(header)).second && adapters.size() == 2)
      add("only cli/wiring.cc knows types of more than one of layers, registry and runners");
  }
  return faults;
}

}  // namespace dsec::test
