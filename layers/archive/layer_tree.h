#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "layers/archive/tar_reader.h"

namespace dsec::layers {

/// A file or directory as names share it; never changed once names point to it.
struct Inode {
  Entry entry;              ///< `path` is unused
  std::uint32_t layer = 0;  ///< the archive in which the content lies
  std::vector<Segment> segments;
};

/// One entry of an image that is to be written, in the order of TreeSink.
struct ImageEntry {
  std::string path;
  std::shared_ptr<const Inode> inode;  ///< empty: a whiteout
  std::string link_to;                 ///< not empty: a further name of an entry before
  bool opaque = false;
};

/// The tree that archives applied one upon the other make, kept in memory without any content.
///
/// Entries of one archive are collected first, then its deletions are carried out on what the archives before it left,
/// then its entries, in order: so a deletion never hits its own archive, wherever it stands in it.
///
/// A path may lead through symlinks of *earlier* archives: they are followed inside the root, as container runtimes do
/// when they unpack one layer upon another. Through a symlink of its own archive no entry is written; that is refused.
class LayerTree {
 public:
  /// Whether names that begin with ".wh." delete (image layers) or are ordinary (plain archives).
  enum class Markers { Delete, Ordinary };

  LayerTree(Markers markers, const InputLimits& limits);
  ~LayerTree();

  /// Of the archive that is being read; throws Error naming the entry.
  void add(TarMember member);
  /// The archive is complete. Returns whether it had any entry.
  bool end_archive();
  /// Instead of it: nothing was added since the archive before.
  void drop_archive();
  /// What was applied since the image before becomes an image of its own: whiteouts and opaque marks stand only where
  /// it hides something of the images before.
  std::vector<ImageEntry> end_image();
  bool image_has_entries() const noexcept { return image_has_entries_; }
  bool archive_has_entries() const noexcept { return !pending_.empty() || !whiteouts_.empty() || !opaques_.empty(); }

 private:
  struct Node;
  struct Link;  // a hard link whose target is not there yet

  void apply(TarMember& member, const std::string& path, std::uint32_t sequence);
  bool apply_link(const Link& link);
  void apply_waiting(std::vector<Link>& waiting);
  void apply_whiteout(const std::string& path);
  void apply_opaque(const std::string& directory);
  Node* walk(std::string_view path, std::string_view entry, bool create);
  Node* walk_for_deletion(std::string_view path, std::string_view entry);
  std::shared_ptr<const Inode> find_inode(const std::string& path, std::string_view entry);
  const std::string& linked_by_aufs(const std::string& path) const;
  std::shared_ptr<const Inode> find_deleted(std::string_view target) const;
  Node& place(Node& parent, std::string_view name, std::shared_ptr<const Inode> inode);
  void remove_child(Node& parent, std::string_view name);
  bool has_own_entry(std::string_view path);
  void collect(const Node& node, std::string& path, std::vector<ImageEntry>& out) const;
  static void settle(Node& node);

  const Markers markers_;
  const InputLimits limits_;
  std::unique_ptr<Node> root_;
  std::uint32_t archive_ = 0;   // its number, from 0
  std::uint32_t sequence_ = 0;  // of the entry in it
  bool image_has_entries_ = false;
  std::uint64_t symlink_steps_ = 0, implied_bytes_ = 0;

  struct Named {
    std::string path;
    TarMember member;
  };
  std::vector<Named> pending_;
  std::vector<std::string> whiteouts_, opaques_;
  std::unordered_set<std::string_view> own_;  // paths of pending_, made when a deletion needs it
  // Hard links may still name what the same archive deletes, and the book-keeping files of aufs, which are not kept.
  std::map<std::string, std::unique_ptr<Node>, std::less<>> deleted_;
  std::unordered_map<std::string, std::shared_ptr<const Inode>> bookkeeping_;
  std::unordered_map<std::string, std::string> bookkeeping_links_;  // those of them that are links, and to what
};

}  // namespace dsec::layers
