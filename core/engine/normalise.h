#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::engine {

/// Replaces in output what differs between two runs of the same command: times, dates, durations, process ids, names of
/// temporary files, memory addresses. Two outputs are the same when they are the same afterwards.
class Normaliser {
 public:
  /// With the built-in rules alone.
  Normaliser();
  ~Normaliser();
  Normaliser(Normaliser&&) noexcept;

  /// A rule that comes before the built-in ones: a POSIX extended regular expression, matched within a line, and the
  /// text that takes the place of what it matches. Throws Error (Usage) when it is none, or matches nothing at all.
  void add(const std::string& expression, const std::string& replacement);
  /// A text that stands for itself, such as the name of a sandbox.
  void add_literal(const std::string& text, const std::string& replacement);
  /// Rules of a file: a line each, the expression and the replacement between tabs; '#' begins a comment. Throws Error
  /// (Usage) naming the line.
  void add_file(std::string_view content, const std::string& origin);

  std::string apply(std::string_view output) const;

 private:
  struct Rule;
  std::vector<std::unique_ptr<Rule>> rules_, built_in_;
  std::vector<std::pair<std::string, std::string>> literals_;
};

}  // namespace dsec::engine
