#pragma once

#include <string>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// The end of what comes from a pipe.
class LastWords {
 public:
  /// Throws Error.
  explicit LastWords(UniqueFd pipe);
  /// Reads what has come.
  void hear();
  /// Its last lines as one; empty when there was none.
  std::string text() const;

 private:
  UniqueFd pipe_;
  std::string heard_;
};

}  // namespace dsec::runners
