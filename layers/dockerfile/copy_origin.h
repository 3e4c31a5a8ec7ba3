#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/engine/layer_store.h"
#include "layers/archive/byte_stream.h"
#include "layers/compose/merged_tree.h"
#include "layers/dir/tree_reader.h"
#include "layers/dockerfile/file_digests.h"
#include "layers/dockerfile/ignore.h"
#include "layers/source.h"

namespace dsec::layers::dockerfile {

/// A tree that files are copied from, or that they are copied into. Paths are relative to its root, in normal form. Not
/// thread-safe.
class CopyOrigin {
 public:
  virtual ~CopyOrigin() = default;
  /// What has this path, symlinks not followed; the root is "". Owners and xattrs are those of the tree.
  virtual std::optional<Entry> find(const std::string& path) = 0;
  /// The names in a directory, sorted.
  virtual std::vector<std::string> names(const std::string& directory) = 0;
  /// Content of a file that find() has found. Throws Error when it is no longer the one that was found.
  virtual void content(const std::string& file, const std::function<void(std::string_view)>& take) = 0;
  /// Of a file's content.
  virtual Digest content_digest(const std::string& file);
  /// The number of the line of an ignore file that leaves `path` out, or 0.
  virtual int ignored(const std::string& path) const = 0;
  virtual bool has_exceptions() const = 0;

  /// Where `path` leads when symlinks on the way are followed inside the root, the last one too. What does not exist
  /// stays as it is written. Throws Error for a ring of links.
  std::string resolve(const std::string& path);
  /// Content of a small file; throws Error when it is larger than `limit`.
  std::string text(const std::string& file, std::size_t limit);
};

/// A build context on disk. Never leaves its folder; names on other filesystems and sockets are not found. What was
/// found once stays as it was then.
class ContextOrigin final : public CopyOrigin {
 public:
  /// Throws Error when `folder` is none. `digests` is where those of its files are kept between builds; empty: nowhere.
  ContextOrigin(const std::filesystem::path& folder, IgnoreList ignore, std::filesystem::path digests = {});

  std::optional<Entry> find(const std::string& path) override;
  std::vector<std::string> names(const std::string& directory) override;
  void content(const std::string& file, const std::function<void(std::string_view)>& take) override;
  Digest content_digest(const std::string& file) override;
  int ignored(const std::string& path) const override { return ignore_.excluded_by(path); }
  bool has_exceptions() const override { return ignore_.has_exceptions(); }

  /// Bytes of the file as they lie there, for an archive. Throws Error when it is no longer the one that was found.
  FileSpan open(const std::string& file) const;
  /// Of everything that is not ignored: the same wherever the folder lies and whoever's it is.
  Digest digest();

 private:
  UniqueFd folder_of(const std::string& path) const;
  std::optional<Entry> look(const std::string& path);

  std::filesystem::path folder_;
  UniqueFd root_;
  TreeReader reader_;
  dev_t device_ = 0;
  IgnoreList ignore_;
  FileDigests digests_;
  std::map<std::string, struct stat> found_;  // files as they were found first
  std::map<std::string, std::optional<Entry>> entries_;
  std::map<std::string, std::vector<std::string>> names_;
  std::map<std::string, Digest> contents_;
  std::string last_folder_;  // that entries were looked for in
  UniqueFd last_;
};

/// The tree that a stack of layers shows; an empty one has nothing but its root.
class StackOrigin final : public CopyOrigin {
 public:
  StackOrigin() = default;
  StackOrigin(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top);

  std::optional<Entry> find(const std::string& path) override;
  std::vector<std::string> names(const std::string& directory) override;
  void content(const std::string& file, const std::function<void(std::string_view)>& take) override;
  int ignored(const std::string&) const override { return 0; }
  bool has_exceptions() const override { return false; }

 private:
  std::optional<MergedTree> tree_;               // empty: no layers
  std::vector<std::set<std::string>> implicit_;  // directories whose attributes a layer does not mean, by layer
};

/// CopyOrigin::resolve in a tree of which `find` tells what has a path.
std::string resolve_in(const std::function<std::optional<Entry>(const std::string&)>& find, const std::string& path);

/// The name of a path and the directory it lies in.
std::string base_of(const std::string& path);
std::string parent_of(const std::string& path);
std::string joined(const std::string& directory, const std::string& name);

}  // namespace dsec::layers::dockerfile
