#pragma once

#include <string>
#include <string_view>

#include "layers/git/attributes.h"
#include "layers/git/tree_walk.h"

namespace dsec::layers {

/// What a checkout does to the bytes of a blob, as git's attributes define it (gitattributes(5)): ident, text/eol and
/// working-tree-encoding. Attributes come from the commit alone; core.autocrlf and core.eol count as not set, and
/// filter drivers are programs, which are never run: their files stay as they are stored (a pointer of LFS stays a
/// pointer).
class CheckoutFilter {
 public:
  /// Reads the .gitattributes files of the tree.
  CheckoutFilter(const GitObjects& objects, const GitTree& tree);

  /// The bytes of the file at `path`; a view of `stored` when nothing changes, else of `buffer`.
  std::string_view apply(const std::string& path, std::string_view stored, std::string& buffer) const;

  /// Whether Git LFS would be run for anything, and for the file at `path`.
  bool has_lfs() const noexcept { return lfs_; }
  bool is_lfs(const std::string& path) const;

 private:
  GitAttributes attributes_;
  bool lfs_ = false;
};

/// Which line ends a checkout writes. Auto leaves binary files and files that already have a CR alone.
enum class LineEnds { Keep, Crlf, AutoCrlf };

/// Each LF without a CR before it becomes CRLF; false when nothing changes.
bool to_crlf(std::string_view bytes, LineEnds ends, std::string& out);
/// "$Id$" and "$Id: …$" get the blob's id; false when there is none.
bool expand_ident(std::string_view bytes, const std::string& blob_id, std::string& out);
/// UTF-8 into `encoding` (an iconv name, or git's "UTF-16LE-BOM" and "UTF-16BE-BOM"); false when it cannot be, in which
/// case git too writes the file as it is stored.
bool encode(std::string_view bytes, std::string encoding, std::string& out);

}  // namespace dsec::layers
