#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/source.h"

namespace dsec::layers {

constexpr std::size_t kTarBlock = 512;

/// A block of a tar archive as POSIX.1-2017 (pax, "ustar Interchange Format") and the GNU tar manual ("Basic Tar
/// Format") lay it out. The view must be kTarBlock bytes and outlive the object.
class TarHeader {
 public:
  explicit TarHeader(std::string_view block) : block_(block) {}

  /// All bytes zero: a half of the end of an archive.
  bool is_zero() const;
  /// Sums of signed and unsigned bytes are both in use.
  bool checksum_fits() const;

  char type() const { return block_[156]; }
  /// With the prefix of ustar archives before it.
  std::string name() const;
  std::string link() const { return text(157, 100); }
  /// Empty when the field holds no number that fits.
  std::optional<std::int64_t> mode() const { return number(100, 8); }
  std::optional<std::int64_t> uid() const { return number(108, 8); }
  std::optional<std::int64_t> gid() const { return number(116, 8); }
  std::optional<std::int64_t> size() const { return number(124, 12); }
  std::optional<std::int64_t> mtime() const { return number(136, 12); }
  std::optional<std::int64_t> major() const { return has_devices() ? number(329, 8) : 0; }
  std::optional<std::int64_t> minor() const { return has_devices() ? number(337, 8) : 0; }

  /// The parts of an old GNU sparse header (type 'S'): pairs of offset and size, whether a block of more follows, and
  /// the real size of the file.
  std::optional<std::vector<std::pair<std::uint64_t, std::uint64_t>>> gnu_sparse_map() const { return map(386, 4); }
  bool gnu_sparse_continues() const { return block_[482] != 0; }
  std::optional<std::int64_t> gnu_real_size() const { return number(483, 12); }
  /// The same of a block that continues such a header.
  std::optional<std::vector<std::pair<std::uint64_t, std::uint64_t>>> extension_map() const { return map(0, 21); }
  bool extension_continues() const { return block_[504] != 0; }

 private:
  std::string text(std::size_t at, std::size_t size) const;
  std::optional<std::int64_t> number(std::size_t at, std::size_t size) const;
  std::optional<std::vector<std::pair<std::uint64_t, std::uint64_t>>> map(std::size_t at, std::size_t count) const;
  bool is_ustar() const { return block_.substr(257, 6) == std::string_view("ustar\0", 6); }
  bool has_devices() const { return block_.substr(257, 5) == "ustar"; }

  std::string_view block_;
};

/// A number field: octal digits between blanks and NULs, or base 256 (high bit set, two's complement).
std::optional<std::int64_t> parse_tar_number(std::string_view field);

/// The records "LENGTH KEY=VALUE\n" of an extended header, in order; empty when the bytes are none.
std::optional<std::vector<std::pair<std::string_view, std::string_view>>> parse_pax_records(std::string_view bytes);

/// "12.5", "-0.25": what is beyond nanoseconds is cut. Empty when `text` is no such number.
std::optional<Timestamp> parse_pax_time(std::string_view text);

/// A decimal number without a sign.
std::optional<std::uint64_t> parse_decimal(std::string_view text);

}  // namespace dsec::layers
