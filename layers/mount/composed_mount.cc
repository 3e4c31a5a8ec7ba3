#include "layers/mount/composed_mount.h"

#include <sstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

// What /proc/self/mountinfo shows as the source of our trees.
constexpr const char* kSource = "dsec-layers";

// proc(5): space, tab, newline and backslash stand as \ooo.
std::string unescape(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Whether the topmost mount at `target` is one of ours.
bool is_ours(const fs::path& target) {
  std::istringstream lines(read_file("/proc/self/mountinfo"));
  bool ours = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields;
    for (std::string word; words >> word;) fields.push_back(word);
    if (fields.size() < 10 || unescape(fields[4]) != target.native()) continue;
    // Optional fields end with "-"; after it come the type and the source.
    std::size_t dash = 6;
    while (dash < fields.size() && fields[dash] != "-") ++dash;
    ours = dash + 2 < fields.size() && fields[dash + 1] == "overlay" && fields[dash + 2] == kSource;
  }
  return ours;
}

UniqueFd empty_layer() {
  FsContext context("tmpfs");
  context.create();
  return context.mount(MountFlags::kReadOnly);
}

}  // namespace

void mount_composed(std::span<const UniqueFd> lowers, const fs::path& target) {
  if (!fs::is_directory(target)) throw usage_error(quote(target.native()) + " is no directory").hint("make it first");
  std::vector<int> fds;
  // Overlayfs wants two lower layers where there is no upper one, and hides whiteouts of every layer that has something
  // below it.
  UniqueFd bottom;
  if (lowers.size() == 1) {
    bottom = empty_layer();
    fds.push_back(bottom.get());
  }
  for (const UniqueFd& lower : lowers) fds.push_back(lower.get());
  const UniqueFd tree =
      make_overlay({.lowers = fds, .attributes = MountFlags::kReadOnly | MountFlags::kNoDev, .source = kSource});
  attach_mount(tree.get(), target);
}

void unmount_composed(const fs::path& target) {
  attempt("cannot unmount " + quote(target.native()), [&] {
    const fs::path place = fs::weakly_canonical(target);
    if (!is_ours(place)) throw usage_error("no layers are mounted there").hint("findmnt shows what is");
    unmount(place);
  });
}

}  // namespace dsec::layers
