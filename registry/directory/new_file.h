#pragma once

#include <string>

#include "core/base/unique_fd.h"

namespace dsec::registry {

/// A file of a registry on its way: a temporary name in the directory it is going to stay in (3FS fixes a file's layout
/// by the directory it is made in), unlinked on destruction.
class NewFile {
 public:
  /// `directory` is an open directory that outlives the object. The name is ".tmp-<publisher>-<random>".
  NewFile(int directory, const std::string& publisher);
  NewFile(const NewFile&) = delete;
  ~NewFile();

  int fd() const noexcept { return fd_.get(); }
  const std::string& name() const noexcept { return name_; }

  /// fsync and close, both checked: 3FS and NFS tell only here that bytes were not stored.
  void flush();
  /// Gives the file its name unless that exists already, which is left as it is: readers may have it open, and 3FS
  /// frees what is replaced under them. False when it existed. No rename flags: 3FS has none.
  bool name_once(const std::string& name);
  /// Gives the file a name that may exist: for tags.
  void replace(const std::string& name);

 private:
  int directory_;
  std::string name_;
  UniqueFd fd_;
};

}  // namespace dsec::registry
