#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layers/dir/ignore_rules.h"

namespace dsec::layers {

/// One line of the list of residue: what commands leave behind and nobody means to ship.
struct ResidueRule {
  std::string_view name;     ///< group: "temporary", "logs", "package-lists", "caches", "histories", "keys", "identity"
  std::string_view pattern;  ///< as in gitignore(5), from the root of the layer
  bool files_only = false;   ///< folders stay, since programs expect them (/var/log/nginx)
};

/// The list, which man/dsec-sources.7.md shows group by group.
std::span<const ResidueRule> residue_rules();

/// Decides what is residue: the list, then a person's own patterns, then what a person wants kept, which wins.
class Scrub {
 public:
  /// Scrubs nothing.
  Scrub() = default;
  /// The list with `more` added and `keep` taken out; both as in gitignore(5).
  static Scrub standard(const std::vector<std::string>& more = {}, const std::vector<std::string>& keep = {});

  /// These patterns alone.
  static Scrub only(const std::vector<std::string>& patterns);

  enum class Verdict { Keep, Residue, KeepAll };
  /// Of exactly this path. Residue that is a folder takes everything below with it but what is kept by name; KeepAll:
  /// the path, or a folder above it, is to be kept with all below.
  Verdict judge(std::string_view path, bool folder) const;
  /// Whether something kept by name may lie below residue.
  bool keeps_by_name() const { return !keep_.empty(); }
  /// What decides, for a cache key: two scrubs with equal text do the same.
  std::string text() const;

 private:
  bool standard_ = false;
  IgnoreRules more_, keep_;
  std::string patterns_;
};

}  // namespace dsec::layers
