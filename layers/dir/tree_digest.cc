#include "layers/dir/tree_digest.h"

#include <string>

namespace dsec::layers {
namespace {

// Each part with its length before it, so that no two entries can look alike.
void put(std::string& text, std::string_view part) {
  text += std::to_string(part.size()) + ":";
  text += part;
}

}  // namespace

void TreeDigest::entry(const Entry& entry) {
  std::string text;
  put(text, entry.path);
  put(text, entry.target);
  for (const auto number :
       {static_cast<std::uint64_t>(entry.type), static_cast<std::uint64_t>(entry.mode),
        static_cast<std::uint64_t>(entry.uid), static_cast<std::uint64_t>(entry.gid),
        static_cast<std::uint64_t>(entry.mtime.seconds), static_cast<std::uint64_t>(entry.mtime.nanoseconds),
        entry.size, static_cast<std::uint64_t>(entry.major), static_cast<std::uint64_t>(entry.minor),
        static_cast<std::uint64_t>(entry.xattrs.size())})
    text += std::to_string(number) + ",";
  for (const auto& [name, value] : entry.xattrs) {
    put(text, name);
    put(text, value);
  }
  sum_.update(text);
}

}  // namespace dsec::layers
