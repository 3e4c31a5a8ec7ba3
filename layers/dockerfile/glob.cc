#include "layers/dockerfile/glob.h"

#include <algorithm>

#include "core/base/error.h"

namespace dsec::layers::dockerfile {

bool Glob::is_pattern(std::string_view pattern) { return pattern.find_first_of("*?[\\") != std::string_view::npos; }

Glob::Token Glob::parse_set(std::string_view pattern, std::size_t& at) {
  const auto unended = [&] { return usage_error("the pattern " + quote(pattern) + " has a '[' without its ']'"); };
  const auto character = [&] {
    if (at < pattern.size() && pattern[at] == '\\') ++at;
    if (at >= pattern.size()) throw unended();
    return static_cast<unsigned char>(pattern[at++]);
  };
  Token set{.kind = Kind::Set};
  if (at < pattern.size() && pattern[at] == '^') {
    set.negated = true;
    ++at;
  }
  while (at < pattern.size() && (pattern[at] != ']' || set.ranges.empty())) {
    const unsigned char first = character();
    unsigned char last = first;
    if (at < pattern.size() && pattern[at] == '-') {
      ++at;
      last = character();
    }
    set.ranges.emplace_back(first, last);
  }
  if (at >= pattern.size()) throw unended();
  ++at;
  return set;
}

Glob Glob::parse(std::string_view pattern, Stars stars) {
  Glob glob;
  for (std::size_t at = 0; at < pattern.size();) {
    const char c = pattern[at++];
    if (c == '*' && stars == Stars::Names && at < pattern.size() && pattern[at] == '*') {
      while (at < pattern.size() && pattern[at] == '*') ++at;
      if (at < pattern.size() && pattern[at] == '/') {
        ++at;
        glob.tokens_.push_back({.kind = Kind::Names});
        glob.tokens_.push_back({.kind = Kind::InNames});
      } else {
        glob.tokens_.push_back({.kind = Kind::Across});
      }
    } else if (c == '*') {
      glob.tokens_.push_back({.kind = Kind::Within});
    } else if (c == '?') {
      glob.tokens_.push_back({.kind = Kind::One});
    } else if (c == '[') {
      glob.tokens_.push_back(parse_set(pattern, at));
    } else if (c == '\\') {
      if (at == pattern.size()) throw usage_error("the pattern " + quote(pattern) + " ends with '\\'");
      glob.tokens_.push_back({.kind = Kind::Character, .character = pattern[at++]});
    } else {
      glob.tokens_.push_back({.kind = Kind::Character, .character = c});
    }
  }
  return glob;
}

void Glob::enter(std::vector<bool>& states, std::size_t state) const {
  for (; !states[state]; ++state) {
    states[state] = true;
    if (state == tokens_.size()) return;
    const Kind kind = tokens_[state].kind;
    if (kind == Kind::Names)
      ++state;  // no name at all: behind both of its states
    else if (kind != Kind::Within && kind != Kind::Across)
      return;
  }
}

void Glob::step(const std::vector<bool>& from, unsigned char c, std::vector<bool>& to) const {
  for (std::size_t state = 0; state < tokens_.size(); ++state) {
    if (!from[state]) continue;
    const Token& token = tokens_[state];
    switch (token.kind) {
      case Kind::Character:
        if (static_cast<unsigned char>(token.character) == c) enter(to, state + 1);
        break;
      case Kind::One:
        if (c != '/') enter(to, state + 1);
        break;
      case Kind::Within:
        if (c != '/') enter(to, state);
        break;
      case Kind::Across:
        enter(to, state);
        break;
      case Kind::Names:
      case Kind::InNames: {
        const std::size_t inside = token.kind == Kind::Names ? state + 1 : state;
        to[inside] = true;
        if (c == '/') enter(to, inside + 1);
        break;
      }
      case Kind::Set: {
        const bool listed = std::any_of(token.ranges.begin(), token.ranges.end(),
                                        [&](const auto& range) { return range.first <= c && c <= range.second; });
        if (c != '/' && listed != token.negated) enter(to, state + 1);
        break;
      }
    }
  }
}

bool Glob::matches(std::string_view path) const {
  std::vector<bool> states(tokens_.size() + 1), next(tokens_.size() + 1);
  enter(states, 0);
  for (const char c : path) {
    next.assign(next.size(), false);
    step(states, static_cast<unsigned char>(c), next);
    states.swap(next);
  }
  return states.back();
}

std::optional<std::size_t> Glob::front(std::string_view text, bool longest) const {
  std::vector<bool> states(tokens_.size() + 1), next(tokens_.size() + 1);
  enter(states, 0);
  std::optional<std::size_t> found;
  for (std::size_t at = 0;; ++at) {
    if (states.back()) found = at;
    if (at == text.size() || (found && !longest)) return found;
    next.assign(next.size(), false);
    step(states, static_cast<unsigned char>(text[at]), next);
    states.swap(next);
  }
}

}  // namespace dsec::layers::dockerfile
