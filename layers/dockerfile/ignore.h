#pragma once

#include <string_view>
#include <vector>

#include "layers/dockerfile/glob.h"

namespace dsec::layers::dockerfile {

/// A list of patterns as in .dockerignore: a path is left out when the last pattern that fits it, or a directory above
/// it, does not begin with `!`. Also what `--exclude` means.
class IgnoreList {
 public:
  IgnoreList() = default;
  /// The lines of a .dockerignore; throws Error (Usage) naming `origin` and the line.
  static IgnoreList parse(std::string_view text, std::string_view origin);
  /// One more pattern; throws Error (Usage).
  void add(std::string_view pattern);

  /// The number of the pattern that leaves `path` out (of its line, for a file), or 0. `path` is relative.
  int excluded_by(std::string_view path) const;
  bool excludes(std::string_view path) const { return excluded_by(path) != 0; }
  /// Whether something below a path that is left out may not be.
  bool has_exceptions() const noexcept { return exceptions_; }

 private:
  struct Rule {
    Glob glob;
    bool exception;
    int number;
  };
  void add(std::string_view pattern, int number);
  std::vector<Rule> rules_;
  bool exceptions_ = false;
};

}  // namespace dsec::layers::dockerfile
