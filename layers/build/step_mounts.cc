#include "layers/build/step_mounts.h"

namespace dsec::layers {
namespace {

bool lies_in(const std::string& path, const std::string& folder) {
  return folder.empty() || (path.size() > folder.size() && path[folder.size()] == '/' && path.starts_with(folder));
}

}  // namespace

WithoutMountPoints::WithoutMountPoints(TreeSink& under, const std::set<std::string>& points,
                                       dockerfile::CopyOrigin& below)
    : under_(under), below_(below), points_(points) {
  for (const std::string& point : points)
    for (std::string at = dockerfile::parent_of(point); !at.empty(); at = dockerfile::parent_of(at)) above_.insert(at);
}

bool WithoutMountPoints::came_with_mounts(const Entry& entry) {
  const bool point = points_.contains(entry.path);
  if (!point && !above_.contains(entry.path)) return false;
  if (!point && entry.type != EntryType::Directory) return false;
  const std::optional<Entry> old = below_.find(entry.path);
  if (!old) return true;
  return old->type == entry.type && old->mode == entry.mode && old->uid == entry.uid && old->gid == entry.gid &&
         old->xattrs == entry.xattrs;
}

void WithoutMountPoints::entry(const Entry& entry) {
  while (!waiting_.empty() && !lies_in(entry.path, waiting_.back().path)) waiting_.pop_back();
  if (came_with_mounts(entry)) {
    if (entry.type == EntryType::Directory) waiting_.push_back(entry);
    return;
  }
  for (const Entry& folder : waiting_) under_.entry(folder);
  waiting_.clear();
  under_.entry(entry);
}

void WithoutMountPoints::data(std::string_view bytes) { under_.data(bytes); }

}  // namespace dsec::layers
