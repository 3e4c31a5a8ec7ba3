#include "cli/diff_stat.h"

#include <algorithm>
#include <vector>

#include "cli/output.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kColumns = 80, kSmallestGraph = 10;

std::string counted(std::uint64_t count, const std::string& word) {
  return std::to_string(count) + " " + word + (count == 1 ? "" : "s");
}

// As git does it: at least one sign for what is there at all.
std::size_t scaled(std::uint64_t count, std::uint64_t largest, std::size_t room) {
  if (count == 0 || largest <= room) return count;
  return 1 + static_cast<std::size_t>(count * (room - 1) / largest);
}

}  // namespace

std::string diff_stat(std::span<const engine::FileChange> changes) {
  std::vector<std::string> names;
  std::size_t name_width = 0;
  std::uint64_t largest = 0, added = 0, deleted = 0;
  for (const engine::FileChange& change : changes) {
    names.push_back(printable(change.change.path));
    name_width = std::max(name_width, names.back().size());
    largest = std::max(largest, change.added_lines + change.deleted_lines);
    added += change.added_lines;
    deleted += change.deleted_lines;
  }
  const std::size_t number_width = std::to_string(largest).size(), taken = name_width + number_width + 5;
  const std::size_t room = taken + kSmallestGraph < kColumns ? kColumns - taken : kSmallestGraph;
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const engine::FileChange& change = changes[i];
    text += " " + names[i] + std::string(name_width - names[i].size(), ' ') + " | ";
    if (change.binary) {
      text += "Bin " + std::to_string(change.bytes_before) + " -> " + std::to_string(change.bytes_after) + " bytes\n";
      continue;
    }
    const std::string number = std::to_string(change.added_lines + change.deleted_lines);
    text += std::string(number_width - number.size(), ' ') + number;
    const std::string graph = std::string(scaled(change.added_lines, largest, room), '+') +
                              std::string(scaled(change.deleted_lines, largest, room), '-');
    text += (graph.empty() ? "" : " " + graph) + "\n";
  }
  text += " " + counted(changes.size(), "file") + " changed";
  if (added > 0 || deleted == 0) text += ", " + counted(added, "insertion") + "(+)";
  if (deleted > 0 || added == 0) text += ", " + counted(deleted, "deletion") + "(-)";
  return text + "\n";
}

}  // namespace dsec::cli
