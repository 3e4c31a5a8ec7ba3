#include "registry/oci/challenge.h"

#include <algorithm>

namespace dsec::registry {
namespace {

bool is_token(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool done() const { return rest_.empty(); }
  void skip(std::string_view any_of) { rest_.remove_prefix(std::min(rest_.find_first_not_of(any_of), rest_.size())); }
  std::string token() {
    const std::size_t end =
        static_cast<std::size_t>(std::find_if_not(rest_.begin(), rest_.end(), is_token) - rest_.begin());
    const std::string out(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return out;
  }
  // The '=' between a name and its value; two of them end credentials in the form of one word.
  bool assignment() {
    const std::string_view before = rest_;
    skip(" \t");
    if (!rest_.starts_with('=')) {
      rest_ = before;
      return false;
    }
    rest_.remove_prefix(1);
    skip(" \t");
    return true;
  }
  std::string value() {
    if (!rest_.starts_with('"')) return token();
    std::string out;
    std::size_t at = 1;
    for (; at < rest_.size() && rest_[at] != '"'; ++at) {
      if (rest_[at] == '\\' && at + 1 < rest_.size()) ++at;
      out += rest_[at];
    }
    rest_.remove_prefix(std::min(at + 1, rest_.size()));
    return out;
  }
  void next_part() { rest_.remove_prefix(std::min(rest_.find(','), rest_.size())); }

 private:
  std::string_view rest_;
};

}  // namespace

std::vector<Challenge> parse_challenges(std::string_view header) {
  std::vector<Challenge> challenges;
  Reader reader(header);
  while (true) {
    reader.skip(" \t,");
    if (reader.done()) return challenges;
    const std::string word = reader.token();
    if (word.empty()) {
      reader.next_part();
      continue;
    }
    if (reader.assignment()) {
      const std::string value = reader.value();
      if (!challenges.empty()) challenges.back().parameters.emplace(lower(word), value);
      continue;
    }
    challenges.push_back({lower(word), {}});
  }
}

}  // namespace dsec::registry
