#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::layers {

/// What gitattributes(5) gives an attribute.
struct GitAttribute {
  enum class Kind { Unspecified, True, False, String };
  Kind kind = Kind::Unspecified;
  std::string text;  ///< of a String
  bool operator==(const GitAttribute&) const = default;
};

/// The .gitattributes files of one tree. Read by hand: libgit2 1.5 knows no quoted patterns, and asks the host's and
/// the user's files as well.
class GitAttributes {
 public:
  /// `folder` is "" for the root. Lines that git ignores (too long, wrong names, "!" patterns) are ignored.
  void add_file(const std::string& folder, std::string_view text);
  bool empty() const { return files_.empty(); }

  /// Of the file at `path`, with macros resolved; names that nothing speaks of are not in the result.
  std::map<std::string, GitAttribute> look_up(std::string_view path) const;

 private:
  using Settings = std::vector<std::pair<std::string, GitAttribute>>;
  struct Line {
    std::string pattern;
    bool by_name = false;  ///< no '/' in it: compared with the last component
    Settings settings;
  };
  static bool read_line(std::string_view line, std::string& pattern, Settings& settings);
  void apply(const Settings& settings, std::map<std::string, GitAttribute>& found) const;

  std::map<std::string, std::vector<Line>> files_;
  std::map<std::string, Settings> macros_ = {{"binary",
                                              {{"diff", {GitAttribute::Kind::False, {}}},
                                               {"merge", {GitAttribute::Kind::False, {}}},
                                               {"text", {GitAttribute::Kind::False, {}}}}}};
};

}  // namespace dsec::layers
