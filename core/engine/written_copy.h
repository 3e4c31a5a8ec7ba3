#pragma once

#include <filesystem>
#include <memory>

#include "core/base/unique_fd.h"

namespace dsec::engine {

/// What a sandbox had written at one moment, copied.
struct WrittenCopy {
  UniqueFd upper;               ///< directory: the writable layer in overlayfs form, without deletions of nothing
  UniqueFd lower;               ///< directory: what the layers have where something was changed; none: not asked for
  std::shared_ptr<void> files;  ///< they are removed with it
};
enum class WrittenBelow { Left, Included };

/// A runner whose sandboxes keep what they write where this host does not look, nor into their layers: in the place of
/// hold_still() and open_writable_layer().
class WrittenCopier {
 public:
  virtual ~WrittenCopier() = default;
  /// Of a sandbox that lives. Throws Error.
  virtual WrittenCopy copy_written(const std::filesystem::path& directory, WrittenBelow below) = 0;
};

}  // namespace dsec::engine
