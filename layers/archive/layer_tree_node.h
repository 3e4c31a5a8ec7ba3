#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "layers/archive/layer_tree.h"

namespace dsec::layers {

struct LayerTree::Node {
  std::shared_ptr<const Inode> inode;
  std::uint32_t archive = 0;  // that made the entry; a symlink repeated as it was keeps the first one
  std::uint32_t sequence = 0;
  bool implicit = false;  // a directory nobody has an entry for
  bool below = false;     // an image below has this very name
  bool changed = true;    // since the images below
  bool opaque = false;    // its names in the images below are deleted
  std::map<std::string, std::unique_ptr<Node>, std::less<>> children;
  std::map<std::string, bool> hidden;  // deleted names of the images below, and whether each was a filled directory

  bool is_directory() const { return inode->entry.type == EntryType::Directory; }
  bool is_symlink() const { return inode->entry.type == EntryType::Symlink; }
};

}  // namespace dsec::layers
