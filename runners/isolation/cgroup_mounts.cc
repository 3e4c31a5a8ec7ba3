#include <sstream>

#include "runners/isolation/cgroups.h"

namespace dsec::runners {
namespace {

/// mountinfo writes blank, tab, newline and backslash as \ooo.
std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool octal = text[i] == '\\' && i + 3 < text.size() && text.find_first_not_of("01234567", i + 1) > i + 3;
    if (!octal) {
      result += text[i];
      continue;
    }
    result += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return result;
}

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

bool has(const std::vector<std::string>& words, const char* word) {
  for (const std::string& each : words)
    if (each == word) return true;
  return false;
}

}  // namespace

std::vector<CgroupHierarchy> parse_cgroup_mounts(std::string_view mountinfo) {
  std::vector<CgroupHierarchy> found;
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string id, parent, device, root, point, options, type, source, super;
    left >> id >> parent >> device >> root >> point >> options;
    right >> type >> source >> super;
    if (type != "cgroup" && type != "cgroup2") continue;
    CgroupHierarchy hierarchy;
    hierarchy.v2 = type == "cgroup2";
    hierarchy.root = unescape(point);
    hierarchy.read_only = has(split_commas(options), "ro") || has(split_commas(super), "ro");
    if (!hierarchy.v2) hierarchy.controllers = split_commas(super);
    // The same hierarchy may be mounted twice (a container's own view and a bind of the host's): the last mount over a
    // place is the one that is seen, the first place is the usual one.
    bool replaced = false;
    for (CgroupHierarchy& other : found) {
      if (other.root != hierarchy.root) continue;
      other = hierarchy;
      replaced = true;
    }
    if (!replaced) found.push_back(std::move(hierarchy));
  }
  return found;
}

}  // namespace dsec::runners
