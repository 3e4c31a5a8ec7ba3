#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace dsec::layers {

/// Where a secret of RUN --mount=type=secret comes from. Its value is read when a command runs that wants it, and
/// stands in no layer, cache key or log.
struct BuildSecret {
  std::filesystem::path file;
  std::string variable;  ///< of this process's environment, instead of a file

  /// "id=NAME,src=FILE", "id=NAME,env=VARIABLE" or "id=NAME" for the variable of that name; the id and where it comes
  /// from. Throws Error (Usage).
  static std::pair<std::string, BuildSecret> parse(std::string_view text);
  /// Throws Error when it is not there.
  std::string value() const;
};

}  // namespace dsec::layers
