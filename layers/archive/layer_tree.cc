#include "layers/archive/layer_tree.h"

#include <algorithm>
#include <deque>

#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/archive/layer_tree_node.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

constexpr std::string_view kMarker = ".wh.";
constexpr std::string_view kOpaqueMarker = ".wh..wh..opq";
constexpr std::string_view kBookkeeping = ".wh..wh.";
constexpr int kMaxSymlinks = 40;  // the kernel's own bound for one path
// Of all entries together: an archive of a few kilobytes could otherwise keep a processor busy for days.
constexpr std::uint64_t kMaxSymlinkSteps = 20'000'000;
// Deeper trees cannot be walked within an ordinary stack.
constexpr std::size_t kMaxDepth = 4096;
constexpr std::uint64_t kMaxImpliedBytes = 64 << 20;
// Of links that wait for others of the same archive and name them through symlinks.
constexpr int kMaxLinkRounds = 40;

std::pair<std::string_view, std::string_view> split_last(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return {{}, path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

template <typename Visit>
void for_each_part(std::string_view path, Visit&& visit) {
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) visit(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
}

std::shared_ptr<const Inode> implicit_directory() {
  Inode inode;
  inode.entry.type = EntryType::Directory;
  inode.entry.mode = 0755;
  return std::make_shared<const Inode>(std::move(inode));
}

}  // namespace

struct LayerTree::Link {
  std::string path, target;
  std::uint32_t sequence;
};

LayerTree::LayerTree(Markers markers, const InputLimits& limits)
    : markers_(markers), limits_(limits), root_(std::make_unique<Node>()) {
  root_->inode = implicit_directory();
  root_->implicit = true;
  root_->changed = false;
}

LayerTree::~LayerTree() = default;

void LayerTree::add(TarMember member) {
  const std::string_view marker = markers_ == Markers::Delete ? kMarker : std::string_view();
  std::string path = normal_path(member.entry.path, limits_, marker);
  if (member.entry.type == EntryType::HardLink) member.entry.target = normal_path(member.entry.target, limits_, marker);
  if (markers_ == Markers::Delete) {
    const auto [directory, name] = split_last(path);
    bool kept_by_aufs = false, marker_above = false;
    for_each_part(directory, [&](std::string_view part) {
      if (part.starts_with(kBookkeeping))
        kept_by_aufs = true;
      else if (part.starts_with(kMarker))
        marker_above = true;
    });
    if (name == kOpaqueMarker && !kept_by_aufs && !marker_above) {
      opaques_.emplace_back(directory);
      return;
    }
    if (kept_by_aufs || name.starts_with(kBookkeeping)) {
      if (member.entry.type == EntryType::HardLink) {
        // To another such name, or to the file that it stands for, wherever in the archive either is.
        bookkeeping_.erase(path);
        bookkeeping_links_[path] = member.entry.target;
        return;
      }
      bookkeeping_links_.erase(path);
      bookkeeping_[path] =
          std::make_shared<const Inode>(Inode{std::move(member.entry), archive_, std::move(member.segments)});
      return;
    }
    if (marker_above)
      throw refusal(Refusal::NotRepresentable, "entry " + quote(path) + " lies below a deletion marker");
    if (name.starts_with(kMarker)) {
      const std::string_view victim = name.substr(kMarker.size());
      if (victim.empty() || victim == "." || victim == "..")
        throw refusal(Refusal::NotRepresentable, "the deletion marker " + quote(path) + " names nothing");
      whiteouts_.push_back(directory.empty() ? std::string(victim)
                                             : std::string(directory) + "/" + std::string(victim));
      return;
    }
  }
  if (path.empty() && member.entry.type != EntryType::Directory)
    throw refusal(Refusal::NotRepresentable, "the entry for the root is no directory");
  member.entry.path.clear();
  pending_.push_back({std::move(path), std::move(member)});
}

bool LayerTree::end_archive() {
  const bool any = archive_has_entries();
  image_has_entries_ |= any;
  for (const std::string& directory : opaques_) apply_opaque(directory);
  for (const std::string& path : whiteouts_) apply_whiteout(path);
  std::vector<Link> waiting;
  sequence_ = 0;
  for (Named& named : pending_) {
    ++sequence_;
    if (named.member.entry.type == EntryType::HardLink) {
      Link link{named.path, named.member.entry.target, sequence_};
      if (!apply_link(link)) waiting.push_back(std::move(link));
    } else {
      apply(named.member, named.path, sequence_);
    }
  }
  apply_waiting(waiting);
  if (!waiting.empty())
    throw refusal(Refusal::HardlinkTarget, "entry " + quote(waiting.front().path) + " is a hard link to " +
                                               quote(waiting.front().target) + ", which is not there");
  drop_archive();
  ++archive_;
  return any;
}

void LayerTree::drop_archive() {
  own_.clear();
  pending_.clear();
  pending_.shrink_to_fit();
  whiteouts_.clear();
  opaques_.clear();
  deleted_.clear();
  bookkeeping_.clear();
  bookkeeping_links_.clear();
}

/// Links to entries that came later, and links to those links; what cannot be made stays in `waiting`.
void LayerTree::apply_waiting(std::vector<Link>& waiting) {
  bool progress = true;
  for (int round = 0; progress && round < kMaxLinkRounds && !waiting.empty(); ++round) {
    // A link that was made lets those that name it follow at once, however many wait for one another.
    std::unordered_multimap<std::string_view, std::size_t> by_target;
    for (std::size_t i = 0; i < waiting.size(); ++i) by_target.emplace(waiting[i].target, i);
    std::vector<bool> made(waiting.size());
    for (std::size_t first = 0; first < waiting.size(); ++first) {
      for (std::vector<std::size_t> ready = {first}; !ready.empty();) {
        const std::size_t i = ready.back();
        ready.pop_back();
        if (made[i] || !apply_link(waiting[i])) continue;
        made[i] = true;
        const auto [begin, end] = by_target.equal_range(waiting[i].path);
        for (auto next = begin; next != end; ++next) ready.push_back(next->second);
      }
    }
    const std::size_t before = waiting.size();
    std::vector<Link> left;
    for (std::size_t i = 0; i < waiting.size(); ++i)
      if (!made[i]) left.push_back(std::move(waiting[i]));
    progress = left.size() < before;
    waiting = std::move(left);
  }
}

bool LayerTree::has_own_entry(std::string_view path) {
  if (own_.empty())
    for (const Named& named : pending_) own_.insert(named.path);
  return own_.contains(path);
}

/// The directory at `path`, following the symlinks of earlier archives. What is missing is made, or else the result is
/// null.
LayerTree::Node* LayerTree::walk(std::string_view path, std::string_view entry, bool create) {
  std::vector<Node*> stack = {root_.get()};
  std::deque<std::string> todo;
  for_each_part(path, [&](std::string_view part) { todo.emplace_back(part); });
  std::vector<std::size_t> lengths = {0};  // of the paths of what is in `stack`
  for (int symlinks = 0; !todo.empty();) {
    if (symlinks > 0 && ++symlink_steps_ > kMaxSymlinkSteps)
      throw refusal(Refusal::NotRepresentable,
                    "entry " + quote(entry) + " and those before it lead through too many symlinks");
    const std::string part = std::move(todo.front());
    todo.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      if (stack.size() == 1)
        throw refusal(Refusal::PathEscapesRoot, "entry " + quote(entry) + " leads out of the root through a symlink");
      stack.pop_back();
      lengths.pop_back();
      continue;
    }
    Node& here = *stack.back();
    const auto found = here.children.find(part);
    Node* next = found == here.children.end() ? nullptr : found->second.get();
    if (next && next->is_symlink()) {
      if (create && next->archive == archive_)
        throw refusal(Refusal::PathEscapesRoot, "entry " + quote(entry) + " leads through the symlink " + quote(part) +
                                                    " to " + quote(next->inode->entry.target) +
                                                    ", which the same archive makes");
      if (++symlinks > kMaxSymlinks)
        throw refusal(Refusal::NotRepresentable, "entry " + quote(entry) + " leads through too many symlinks");
      const std::string& target = next->inode->entry.target;
      if (target.starts_with('/')) {
        stack.resize(1);
        lengths.resize(1);
      }
      std::deque<std::string> parts;
      for_each_part(target, [&](std::string_view step) { parts.emplace_back(step); });
      todo.insert(todo.begin(), parts.begin(), parts.end());
      continue;
    }
    if (next && !next->is_directory()) {
      if (!create) return nullptr;
      if (next->archive == archive_)
        throw refusal(Refusal::NotRepresentable, "entry " + quote(entry) + " lies below " + quote(part) +
                                                     ", which the same archive makes no directory");
      next = nullptr;
    }
    if (!next) {
      if (!create) return nullptr;
      next = &place(here, part, implicit_directory());
      next->implicit = true;
      // A short archive can imply a great many deep ones.
      implied_bytes_ += lengths.back() + 1 + part.size();
      if (implied_bytes_ > kMaxImpliedBytes)
        throw refusal(Refusal::EntryLimit,
                      "entry " + quote(entry.substr(0, 80)) +
                          "… and those before it lie in directories without entries of their own, whose paths come "
                          "to more than " +
                          format_size(kMaxImpliedBytes));
    }
    stack.push_back(next);
    lengths.push_back(lengths.back() + 1 + part.size());
    // What a path says is bounded, but not what the symlinks on it add.
    if (lengths.back() > limits_.path_bytes || stack.size() > kMaxDepth)
      throw refusal(Refusal::PathLimit, "entry " + quote(entry) + " leads through symlinks to a path longer than the " +
                                            std::to_string(limits_.path_bytes) + " bytes or " +
                                            std::to_string(kMaxDepth) + " directories allowed")
          .hint("allow more bytes with --max-path");
  }
  return stack.back();
}

/// The directory that a deletion refers to, in the state before its own archive; null when there is none. A symlink
/// that the archive itself replaces by something else is not followed: the deletion means the new directory, in which
/// nothing older lies.
LayerTree::Node* LayerTree::walk_for_deletion(std::string_view path, std::string_view entry) {
  std::string so_far;
  bool replaced = false;
  Node* here = root_.get();
  for_each_part(path, [&](std::string_view part) {
    if (replaced || !here) return;
    if (!so_far.empty()) so_far += '/';
    so_far += part;
    const auto found = here->children.find(part);
    here = found == here->children.end() ? nullptr : found->second.get();
    if (here && here->is_symlink()) {
      replaced = has_own_entry(so_far);
      if (!replaced) here = walk(so_far, entry, false);
    }
  });
  return replaced || !here || !here->is_directory() ? nullptr : here;
}

void LayerTree::remove_child(Node& parent, std::string_view name) {
  const auto found = parent.children.find(name);
  if (found == parent.children.end()) return;
  const Node& child = *found->second;
  if (child.below) {
    const bool filled = child.is_directory() && (!child.hidden.empty() || child.opaque ||
                                                 std::any_of(child.children.begin(), child.children.end(),
                                                             [](const auto& item) { return item.second->below; }));
    parent.hidden[std::string(name)] = filled;
  }
  parent.children.erase(found);
}

LayerTree::Node& LayerTree::place(Node& parent, std::string_view name, std::shared_ptr<const Inode> inode) {
  remove_child(parent, name);
  auto node = std::make_unique<Node>();
  node->inode = std::move(inode);
  node->archive = archive_;
  node->sequence = sequence_;
  return *parent.children.emplace(std::string(name), std::move(node)).first->second;
}

void LayerTree::apply_whiteout(const std::string& path) {
  const auto [directory, name] = split_last(path);
  Node* parent = walk_for_deletion(directory, path);
  if (!parent) return;
  const auto found = parent->children.find(name);
  if (found == parent->children.end()) return;
  // remove_child looks at the node, so the copy for hard links is taken apart from it afterwards.
  auto kept = std::make_unique<Node>();
  kept->inode = found->second->inode;
  if (found->second->is_directory()) {
    std::unique_ptr<Node> whole = std::move(found->second);
    auto stand_in = std::make_unique<Node>();
    stand_in->inode = whole->inode;
    stand_in->below = whole->below;
    stand_in->opaque = whole->opaque || !whole->hidden.empty() ||
                       std::any_of(whole->children.begin(), whole->children.end(),
                                   [](const auto& item) { return item.second->below; });
    found->second = std::move(stand_in);
    kept = std::move(whole);
  }
  remove_child(*parent, name);
  deleted_.emplace(path, std::move(kept));
}

void LayerTree::apply_opaque(const std::string& directory) {
  Node* node = walk_for_deletion(directory, directory + "/" + std::string(kOpaqueMarker));
  if (!node) return;
  if (node == root_.get()) {
    // Overlayfs does not look whether the root of a layer is opaque: its names are deleted one by one.
    std::vector<std::string> names;
    for (const auto& [name, child] : node->children) names.push_back(name);
    for (const std::string& name : names) apply_whiteout(name);
    return;
  }
  auto kept = std::make_unique<Node>();
  kept->inode = node->inode;
  for (auto& [name, child] : node->children) {
    node->opaque |= child->below;
    kept->children.emplace(name, std::move(child));
  }
  node->children.clear();
  if (!node->hidden.empty()) node->opaque = true;
  node->hidden.clear();
  deleted_.emplace(directory, std::move(kept));
}

void LayerTree::apply(TarMember& member, const std::string& path, std::uint32_t sequence) {
  auto inode = std::make_shared<const Inode>(Inode{std::move(member.entry), archive_, std::move(member.segments)});
  const bool directory = inode->entry.type == EntryType::Directory;
  const auto set_attributes = [&](Node& node) {
    node.inode = std::move(inode);
    node.archive = archive_;
    node.sequence = sequence;
    node.implicit = false;
    node.changed = true;
  };
  if (path.empty()) return set_attributes(*root_);
  const auto [parent_path, name] = split_last(path);
  Node& parent = *walk(parent_path, path, true);
  const auto found = parent.children.find(name);
  if (found != parent.children.end() && directory && found->second->is_directory())
    return set_attributes(*found->second);
  std::uint32_t made_by = archive_;
  if (found != parent.children.end() && found->second->is_symlink() && inode->entry.type == EntryType::Symlink &&
      found->second->inode->entry.target == inode->entry.target)
    made_by = found->second->archive;
  place(parent, name, std::move(inode)).archive = made_by;
}

/// What a name that aufs kept is a link to; any other name itself.
const std::string& LayerTree::linked_by_aufs(const std::string& path) const {
  const std::string* name = &path;
  for (int links = 0; links < kMaxSymlinks; ++links) {
    const auto found = bookkeeping_links_.find(*name);
    if (found == bookkeeping_links_.end()) break;
    name = &found->second;
  }
  return *name;
}

std::shared_ptr<const Inode> LayerTree::find_inode(const std::string& path, std::string_view entry) {
  if (const auto known = bookkeeping_.find(path); known != bookkeeping_.end()) return known->second;
  const auto [directory, name] = split_last(path);
  if (Node* parent = walk(directory, entry, false); parent && parent->is_directory())
    if (const auto found = parent->children.find(name); found != parent->children.end()) return found->second->inode;
  return nullptr;
}

/// What its own archive deleted at `target`: of several folders that it may have lain in, from the innermost.
std::shared_ptr<const Inode> LayerTree::find_deleted(std::string_view target) const {
  for (std::size_t end = target.size();; end = target.rfind('/', end - 1)) {
    if (end == std::string_view::npos) end = 0;
    if (const auto deleted = deleted_.find(target.substr(0, end)); deleted != deleted_.end()) {
      const Node* here = deleted->second.get();
      for_each_part(target.substr(end), [&](std::string_view part) {
        if (!here) return;
        const auto found = here->children.find(part);
        here = found == here->children.end() ? nullptr : found->second.get();
      });
      if (here) return here->inode;
    }
    if (end == 0) return nullptr;
  }
}

/// False when the target is neither in the tree nor in what the archive deleted: it may still come.
bool LayerTree::apply_link(const Link& link) {
  const std::string& target = linked_by_aufs(link.target);
  std::shared_ptr<const Inode> inode = find_inode(target, link.path);
  if (!inode) inode = find_deleted(target);
  if (!inode) return false;
  if (inode->entry.type == EntryType::Directory)
    throw refusal(Refusal::HardlinkTarget,
                  "entry " + quote(link.path) + " is a hard link to the directory " + quote(link.target));
  if (link.path.empty()) throw refusal(Refusal::NotRepresentable, "the entry for the root is no directory");
  const auto [parent_path, name] = split_last(link.path);
  Node& parent = *walk(parent_path, link.path, true);
  if (const auto found = parent.children.find(name); found != parent.children.end()) {
    if (found->second->inode == inode) return true;  // a link to itself, or made twice
    // It waited for its target, and a later entry took the name meanwhile.
    if (found->second->archive == archive_ && found->second->sequence > link.sequence) return true;
  }
  place(parent, name, std::move(inode)).sequence = link.sequence;
  return true;
}

}  // namespace dsec::layers
