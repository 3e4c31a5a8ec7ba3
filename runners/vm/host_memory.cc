#include "runners/vm/host_memory.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::runners {
namespace {

// "Pss_Anon:            1234 kB" in each line but the first.
std::map<std::string_view, std::uint64_t> figures_of(std::string_view text) {
  std::map<std::string_view, std::uint64_t> figures;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto colon = line.find(':');
    const auto digits = colon == line.npos ? line.npos : line.find_first_not_of(' ', colon + 1);
    if (digits == line.npos || !line.ends_with(" kB")) continue;
    std::uint64_t value = 0;
    if (std::from_chars(line.data() + digits, line.data() + line.size(), value).ec == std::errc())
      figures[line.substr(0, colon)] = value << 10;
  }
  return figures;
}

}  // namespace

engine::HostMemory parse_host_memory(std::string_view rollup) {
  const auto figures = figures_of(rollup);
  const auto figure = [&](std::string_view name) {
    const auto found = figures.find(name);
    if (found == figures.end()) throw failure("the kernel does not tell " + std::string(name) + " of a process");
    return found->second;
  };
  engine::HostMemory memory;
  // Nobody else maps what has no file behind it: its part of that is all of it.
  memory.own = figure("Pss_Anon") + figure("Pss_Shmem");
  const std::uint64_t all = figure("Rss");
  memory.shared = all > memory.own ? all - memory.own : 0;
  memory.part_of_shared = figure("Pss_File");
  return memory;
}

std::optional<engine::HostMemory> host_memory(pid_t pid) {
  const std::filesystem::path file = "/proc/" + std::to_string(pid) + "/smaps_rollup";
  std::string text;
  try {
    text = read_file(file, 1 << 16);
  } catch (const Error&) {
    return std::nullopt;  // it has ended meanwhile
  }
  if (text.empty()) return std::nullopt;
  return parse_host_memory(text);
}

}  // namespace dsec::runners
