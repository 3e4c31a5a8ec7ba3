#include "layers/git/tree_walk.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>

#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

constexpr std::uint32_t kTypeMask = 0170000;
constexpr std::uint32_t kTree = 0040000, kFile = 0100000, kLink = 0120000, kGitlink = 0160000;
constexpr std::size_t kNameLimit = 255;     // NAME_MAX
constexpr std::size_t kTargetLimit = 4095;  // PATH_MAX without its NUL

std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// The code points that HFS+ leaves out when it compares names: U+200C..200F, U+202A..202E, U+206A..206F, U+FEFF.
std::string without_ignorable(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (i + 2 < name.size()) {
      const auto at = [&](std::size_t k) { return static_cast<unsigned char>(name[i + k]); };
      const bool general =
          at(0) == 0xE2 && ((at(1) == 0x80 && ((at(2) >= 0x8C && at(2) <= 0x8F) || (at(2) >= 0xAA && at(2) <= 0xAE))) ||
                            (at(1) == 0x81 && at(2) >= 0xAA && at(2) <= 0xAF));
      if (general || (at(0) == 0xEF && at(1) == 0xBB && at(2) == 0xBF)) {
        i += 2;
        continue;
      }
    }
    out += name[i];
  }
  return out;
}

// What is the order of trees: names as bytes, a folder as if its name ended in '/'.
std::string sort_key(const GitTreeItem& item) { return (item.mode & kTypeMask) == kTree ? item.name + "/" : item.name; }

class Checker {
 public:
  Checker(const GitObjects& objects, const InputLimits& limits, std::set<ObjectId>& empty)
      : objects_(objects), limits_(limits), empty_(empty) {}

  const TreeTotals& check(const ObjectId& id, const std::string& path, std::size_t depth) {
    if (const auto known = totals_.find(id); known != totals_.end()) return known->second;
    if (depth > limits_.path_bytes / 2)
      throw refusal(Refusal::PathLimit, "the tree nests folders deeper than a path may be long").context(at(path));
    TreeTotals sum;
    std::set<std::string, std::less<>> names;
    std::string previous;
    for (const GitTreeItem& item : attempt("cannot read the folder " + at(path), [&] { return objects_.tree(id); })) {
      const std::string full = path.empty() ? item.name : path + "/" + item.name;
      check_name(item, full);
      if (!names.insert(item.name).second)
        throw refusal(Refusal::Damaged, "the tree has the name " + quote(full) + " twice");
      const std::string key = sort_key(item);
      if (key < previous) throw refusal(Refusal::Damaged, "the tree is out of order at " + quote(full));
      previous = key;
      add_item(item, full, depth, sum);
    }
    if (sum.entries == 0) empty_.insert(id);
    return totals_.emplace(id, sum).first->second;
  }

 private:
  static std::string at(const std::string& path) { return path.empty() ? "of the commit" : quote(path); }

  static void check_name(const GitTreeItem& item, const std::string& full) {
    const std::string& name = item.name;
    const auto refuse = [&](Refusal kind, const std::string& why) {
      throw refusal(kind, "the tree entry " + quote(full) + " " + why);
    };
    if (name.empty()) refuse(Refusal::NotRepresentable, "has no name");
    if (name == "." || name == "..") refuse(Refusal::PathEscapesRoot, "would leave its folder");
    if (name.find('/') != std::string::npos) refuse(Refusal::PathEscapesRoot, "has a '/' inside its name");
    if (names_git_dir(name)) refuse(Refusal::NotRepresentable, "would be taken for the repository's own .git");
    if (name.size() > kNameLimit) refuse(Refusal::NotRepresentable, "has a name longer than 255 bytes");
    if ((item.mode & kTypeMask) == kLink && lowered(name) == ".gitmodules")
      refuse(Refusal::NotRepresentable, "is a symlink, which git refuses");
  }

  void add_item(const GitTreeItem& item, const std::string& full, std::size_t depth, TreeTotals& sum) {
    const std::uint32_t type = item.mode & kTypeMask;
    std::uint64_t length = item.name.size();
    if (type == kTree) {
      const TreeTotals below = check(item.id, full, depth + 1);
      if (below.entries == 0) return;  // git has no empty folders
      sum.entries = add(sum.entries, add(below.entries, 1));
      sum.bytes = add(sum.bytes, below.bytes);
      sum.attributes |= below.attributes;
      length += 1 + below.longest_path;
    } else if (type == kFile || type == kLink) {
      const std::uint64_t size = attempt("cannot read " + quote(full), [&] { return objects_.size(item.id); });
      if (type == kLink && size > kTargetLimit)
        throw refusal(Refusal::NotRepresentable, "the symlink " + quote(full) + " has a target of " +
                                                     std::to_string(size) + " bytes, more than Linux allows");
      refuse_oversized(full, size);
      sum.entries = add(sum.entries, 1);
      sum.bytes = add(sum.bytes, size);
      sum.attributes |= type == kFile && item.name == ".gitattributes";
    } else if (type == kGitlink) {
      sum.entries = add(sum.entries, 1);
    } else {
      throw refusal(Refusal::NotRepresentable, "the tree entry " + quote(full) + " is of no type that git knows");
    }
    sum.longest_path = std::max(sum.longest_path, length);
    if (sum.entries > limits_.entries)
      throw refusal(Refusal::EntryLimit,
                    "the tree has more than " + std::to_string(limits_.entries) + " entries (at " + quote(full) + ")");
    if (sum.bytes > limits_.unpacked_bytes)
      throw refusal(Refusal::SizeLimit, "the tree comes to more than " + std::to_string(limits_.unpacked_bytes) +
                                            " bytes (at " + quote(full) + ")");
    if (sum.longest_path > limits_.path_bytes)
      throw refusal(Refusal::PathLimit, "the tree has a path longer than " + std::to_string(limits_.path_bytes) +
                                            " bytes (below " + quote(full.substr(0, 80)) + ")");
  }

  const GitObjects& objects_;
  const InputLimits& limits_;
  std::set<ObjectId>& empty_;
  std::unordered_map<ObjectId, TreeTotals, ObjectIdHash> totals_;
};

}  // namespace

std::uint32_t GitFile::index_mode() const {
  switch (kind) {
    case GitFileKind::Regular:
      return kFile | 0644;
    case GitFileKind::Executable:
      return kFile | 0755;
    case GitFileKind::Symlink:
      return kLink;
    case GitFileKind::Submodule:
      return kGitlink;
  }
  return 0;
}

void refuse_oversized(const std::string& path, std::uint64_t bytes) {
  static const std::uint64_t memory =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > memory / 2)
    throw refusal(Refusal::SizeLimit, "the file " + quote(path) + " has " + std::to_string(bytes) +
                                          " bytes, more than half of this host's memory");
}

bool names_git_dir(std::string_view name) {
  std::string plain = lowered(without_ignorable(name));
  // On some filesystems a stream of the folder, or what lies in it.
  if (const auto more = plain.find_first_of(":\\"); more != std::string::npos) plain.resize(more);
  while (plain.size() > 1 && (plain.back() == '.' || plain.back() == ' ')) plain.pop_back();
  return plain == ".git" || plain == "git~1";
}

GitTree::GitTree(const GitObjects& objects, const ObjectId& id, const InputLimits& limits)
    : objects_(objects), id_(id) {
  totals_ = Checker(objects, limits, empty_).check(id, "", 0);
}

void GitTree::walk(const std::function<void(const GitFile&)>& visit) const { walk_below(id_, "", visit); }

void GitTree::walk_below(const ObjectId& id, const std::string& prefix,
                         const std::function<void(const GitFile&)>& visit) const {
  if (empty_.contains(id)) return;
  for (const GitTreeItem& item : objects_.tree(id)) {
    const std::uint32_t type = item.mode & kTypeMask;
    if (type == kTree) {
      walk_below(item.id, prefix + item.name + "/", visit);
      continue;
    }
    const GitFileKind kind = type == kLink             ? GitFileKind::Symlink
                             : type == kGitlink        ? GitFileKind::Submodule
                             : (item.mode & 0100) != 0 ? GitFileKind::Executable
                                                       : GitFileKind::Regular;
    visit({prefix + item.name, kind, item.id});
  }
}

}  // namespace dsec::layers
