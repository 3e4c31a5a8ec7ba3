#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/archive/byte_stream.h"
#include "layers/archive/input_budget.h"
#include "layers/source.h"

namespace dsec::layers {

/// A piece of a file's content; what no segment covers is zeros.
struct Segment {
  std::uint64_t at = 0;      ///< in the file
  std::uint64_t offset = 0;  ///< in the unpacked archive
  std::uint64_t size = 0;
};

/// One entry of an archive. `entry.path` and the target of a hard link are as the archive spells them.
struct TarMember {
  Entry entry;
  std::vector<Segment> segments;     ///< ascending in the file and in the archive
  std::vector<std::string> dropped;  ///< names of extended attributes that are not kept
};

/// Reads a tar archive: ustar, PAX, GNU and old V7 headers, sparse files of all forms. Names stay the bytes that they
/// are and times keep their sign and fraction, which libarchive's own tar reader promises for neither; it also tells
/// where content lies, so that content can be read later and in another order. Throws Error naming the entry.
class TarReader {
 public:
  /// As POSIX has it, or as container runtimes read the layers of images: what a global header says of all entries
  /// behind it is passed over, and the padding of the last content may be missing, since digests vouch for the rest.
  enum class Rules { Posix, Runtimes };

  /// Both must outlive the reader.
  TarReader(ByteStream& stream, InputBudget& budget, Rules rules);
  ~TarReader();

  /// The next entry; empty at the end of the archive, after which the stream was read to its end.
  std::optional<TarMember> next();
  /// Whether something else than zeros lies behind the end of the archive.
  bool has_trailing_data() const noexcept { return trailing_data_; }

 private:
  struct Pending;  // what extended headers said of the entry that follows them

  bool read_block(std::string& block);
  std::string read_content(std::uint64_t size, std::string_view what);
  void skip(std::uint64_t size);
  bool skip_content();
  void apply_records(Pending& pending, std::string_view bytes);
  TarMember finish(const std::string& block, Pending& pending);
  bool deletes_by_name(std::string_view path) const;
  void read_sparse(const std::string& block, Pending& pending, TarMember& member, std::uint64_t stored);
  void drain();
  std::size_t take(char* out, std::size_t size);
  [[noreturn]] void damaged(std::string_view what) const;

  ByteStream& stream_;
  InputBudget& budget_;
  const Rules rules_;
  std::unique_ptr<Pending> global_;  // what global headers said
  std::string_view piece_;           // not consumed yet
  std::uint64_t position_ = 0;       // in the unpacked archive, of piece_
  std::uint64_t to_skip_ = 0;        // content of the entry before
  bool ended_ = false, trailing_data_ = false;
  std::string last_;  // name of the entry before, for messages
};

}  // namespace dsec::layers
