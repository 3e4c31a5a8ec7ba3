#pragma once

#include <filesystem>
#include <string>

#include "core/base/unique_fd.h"
#include "layers/source.h"

namespace dsec::layers {

/// Writes a tree into an empty folder of this host, with owners, modes, times and xattrs: never outside of it, whatever
/// the tree says. Needs root for what is not the caller's. Throws Error naming the entry.
class TreeWriter final : public TreeSink {
 public:
  explicit TreeWriter(const std::filesystem::path& folder);
  void entry(const Entry& entry) override;
  void data(std::string_view bytes) override;
  /// To be called in the end: the last file, and the times of folders, which everything in them has changed.
  void finish();

 private:
  UniqueFd parent_of(const std::string& path) const;
  void make(const Entry& entry, int parent, const std::string& name);
  void end_file();
  static void set_attributes(const Entry& entry, int parent, const std::string& name);

  UniqueFd root_;
  UniqueFd file_;
  std::vector<Entry> folders_;
  Entry file_entry_;
};

}  // namespace dsec::layers
