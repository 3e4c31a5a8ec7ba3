#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/dockerfile/copy_origin.h"
#include "layers/dockerfile/plan.h"
#include "layers/source.h"

namespace dsec::layers::dockerfile {

/// What one source of a COPY or ADD stands for.
struct PickedSource {
  struct Item {
    std::string path;   ///< in the origin, or in the archive
    std::string below;  ///< relative to the source; "" is the source itself
    Entry entry;
  };
  std::string name;        ///< that a file keeps when it goes into a directory
  bool directory = false;  ///< what lies in it is copied, not the directory itself
  std::vector<Item> items;
  std::string packed;                    ///< path of an archive of an ADD, which is looked into when it is placed
  std::unique_ptr<Source> archive;       ///< of an ADD, to be unpacked: a tar archive, or the files of a commit
  std::shared_ptr<const UniqueFd> kept;  ///< the archive's file, or that of a file that was fetched
};

/// The files of a COPY or ADD, found and read once, not yet placed.
class Selection {
 public:
  /// Throws Error (Usage) for a source that is not there or is ignored, naming it. `origin` must outlive the selection;
  /// an archive of ADD is looked for only in a build context.
  static Selection make(CopyOrigin& origin, const CopyFiles& copy, const std::filesystem::path& spool);

  /// Adds a file of an ADD that was fetched.
  void add_fetched(std::string name, UniqueFd file);
  /// Adds the files of a commit, which `source` was not examined for yet.
  void add_commit(std::unique_ptr<Source> source, Progress& progress);

  /// Of all that is copied: names, modes and contents.
  Digest digest();
  /// A source that sends the files to where they go in `into`, whose symlinks are followed. Throws Error where a file
  /// would replace a directory or the other way round. The selection and `into` must outlive it. Null when there is
  /// nothing to send.
  std::unique_ptr<Source> place(CopyOrigin& into, const CopyFiles& copy);

 private:
  friend class Placement;
  void open_archives();
  CopyOrigin* origin_ = nullptr;
  std::filesystem::path spool_;
  std::vector<PickedSource> sources_;
  std::vector<CopyFiles::Inline> inlines_;
};

/// Sends one directory and those above it that `into` does not have, as those of `owner`. `path` is absolute; what it
/// leads to must not be a file. Null when it exists.
std::unique_ptr<Source> make_directory_source(CopyOrigin& into, const std::string& path, const std::string& owner);

/// "USER[:GROUP]" as ids, from the accounts of a tree. Throws Error (Usage) for a name that it does not have.
std::pair<std::uint32_t, std::uint32_t> owner_ids(CopyOrigin& tree, const std::string& owner);

}  // namespace dsec::layers::dockerfile
