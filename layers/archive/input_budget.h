#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "layers/source.h"

namespace dsec::layers {

/// What an import has used of its limits, over all archives it reads.
class InputBudget {
 public:
  explicit InputBudget(const InputLimits& limits);
  const InputLimits& limits() const noexcept { return limits_; }

  /// A new archive begins, `packed` bytes long: the ratio is judged for each.
  void begin_archive(std::uint64_t packed);
  /// Unpacked bytes of the archive so far; throws Error (size-limit).
  void unpacked(std::uint64_t bytes);
  /// An entry with so many bytes of name, target and attributes, whose content grows by `holes` bytes that the archive
  /// does not contain; throws Error (entry-limit, size-limit).
  void entry(std::uint64_t metadata, std::uint64_t holes);

 private:
  void check_size() const;

  InputLimits limits_;
  std::uint64_t before_ = 0, packed_ = 0, unpacked_ = 0, holes_ = 0;
  std::uint64_t entries_ = 0, metadata_ = 0;
  std::uint64_t memory_;  // bytes that the tree may take
};

/// `raw` as a path below the root: no leading '/', no empty or "." component. Throws Error for "..", for NULs, and for
/// what is longer than Linux or `limits` allow. Names that begin with `marker` are never made: they stand for the name
/// behind it, which alone is measured.
std::string normal_path(std::string_view raw, const InputLimits& limits, std::string_view marker = {});

}  // namespace dsec::layers
