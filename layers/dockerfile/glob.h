#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace dsec::layers::dockerfile {

/// A pattern of file names: `*` and `?` stay within a name, `[a-z]` and `[^a-z]` are one character, `\` makes the next
/// one ordinary (Go's path/filepath.Match). Matching takes time in proportion to pattern and text.
class Glob {
 public:
  /// Whether `**` stands for any number of names, as in .dockerignore, or is two `*`.
  enum class Stars { Names, Ordinary };
  /// Throws Error (Usage) for a `[` without its end and a `\` at the end.
  static Glob parse(std::string_view pattern, Stars stars);

  bool matches(std::string_view path) const;
  /// How many bytes at the front of `text` match, as few or as many as possible; empty: no front does.
  std::optional<std::size_t> front(std::string_view text, bool longest) const;
  /// Whether `pattern` has anything but ordinary characters.
  static bool is_pattern(std::string_view pattern);

 private:
  enum class Kind { Character, One, Within, Across, Names, InNames, Set };
  struct Token {
    Kind kind;
    char character = 0;
    bool negated = false;
    std::vector<std::pair<unsigned char, unsigned char>> ranges = {};
  };
  static Token parse_set(std::string_view pattern, std::size_t& at);
  void enter(std::vector<bool>& states, std::size_t state) const;
  void step(const std::vector<bool>& from, unsigned char c, std::vector<bool>& to) const;

  std::vector<Token> tokens_;
};

}  // namespace dsec::layers::dockerfile
