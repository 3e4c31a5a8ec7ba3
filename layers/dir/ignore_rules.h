#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::layers {

/// Whether `path` matches a pattern of gitignore(5): '*' and '?' do not cross '/', "**" as a whole component does,
/// "[a-z]" and "[!a]" are sets (with "[:alpha:]" classes), a backslash takes away a meaning. Bytes, not characters.
/// Takes time proportional to both lengths, whatever the pattern.
bool wildcard_match(std::string_view pattern, std::string_view path);

/// Patterns in the syntax of gitignore(5), one a line: "#" comments, "!" takes back, a trailing "/" is for folders
/// only, a
/// "/" elsewhere ties the pattern to the root; the last one that matches decides.
class IgnoreRules {
 public:
  static IgnoreRules parse(std::string_view text);

  /// What the last matching pattern says of exactly this path (relative, without a leading '/'): true to ignore, false
  /// to take back, empty when none matches. What lies below an ignored folder is ignored with it: do not go into it.
  std::optional<bool> decide(std::string_view path, bool folder) const;
  bool ignores(std::string_view path, bool folder) const { return decide(path, folder).value_or(false); }
  bool empty() const { return rules_.empty(); }

 private:
  struct Rule {
    std::string pattern;
    bool negated = false, folders_only = false;
    bool anywhere = false;  ///< has no '/': compared with the last component
  };
  std::vector<Rule> rules_;
};

}  // namespace dsec::layers
