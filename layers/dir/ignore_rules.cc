#include "layers/dir/ignore_rules.h"

#include <cctype>
#include <utility>

namespace dsec::layers {
namespace {

bool in_class(std::string_view name, unsigned char c) {
  if (name == "alnum") return std::isalnum(c);
  if (name == "alpha") return std::isalpha(c);
  if (name == "blank") return c == ' ' || c == '\t';
  if (name == "cntrl") return std::iscntrl(c);
  if (name == "digit") return std::isdigit(c);
  if (name == "graph") return std::isgraph(c);
  if (name == "lower") return std::islower(c);
  if (name == "print") return std::isprint(c);
  if (name == "punct") return std::ispunct(c);
  if (name == "space") return std::isspace(c);
  if (name == "upper") return std::isupper(c);
  return name == "xdigit" && std::isxdigit(c);
}

// Matches the set that starts at pattern[at] == '['; moves `at` behind it. False and at == npos when it never ends.
bool match_set(std::string_view pattern, std::size_t& at, unsigned char c) {
  std::size_t i = at + 1;
  const bool inverted = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (inverted) ++i;
  bool found = false;
  for (bool first = true; i < pattern.size(); first = false) {
    if (pattern[i] == ']' && !first) {
      at = i + 1;
      return found != inverted && c != '/';
    }
    if (pattern.substr(i).starts_with("[:")) {
      if (const auto end = pattern.find(":]", i + 2); end != std::string_view::npos) {
        found |= in_class(pattern.substr(i + 2, end - i - 2), c);
        i = end + 2;
        continue;
      }
    }
    if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
    const auto low = static_cast<unsigned char>(pattern[i]);
    auto high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      i += 2;
      if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
      high = static_cast<unsigned char>(pattern[i]);
    }
    found |= c >= low && c <= high;
    ++i;
  }
  at = std::string_view::npos;
  return false;
}

// One component against one component. A '*' is tried again one byte further only from the last '*', which is enough,
// so that no pattern takes more than pattern × name steps.
bool match_component(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, retry = 0;
  while (n < name.size()) {
    bool matched = false;
    std::size_t next = p + 1;
    if (p < pattern.size()) {
      if (pattern[p] == '*') {
        star = p++;
        retry = n;
        continue;
      }
      if (pattern[p] == '?') {
        matched = true;
      } else if (pattern[p] == '[') {
        next = p;
        matched = match_set(pattern, next, static_cast<unsigned char>(name[n]));
      } else {
        // A backslash at the end, which takes away the meaning of nothing, fits nothing.
        if (pattern[p] == '\\') ++p, ++next;
        matched = p < pattern.size() && pattern[p] == name[n];
      }
    }
    if (matched) {
      p = next;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<std::string_view> components(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto slash = text.find('/');
    parts.push_back(text.substr(0, slash));
    if (slash == std::string_view::npos) return parts;
    text.remove_prefix(slash + 1);
  }
}

}  // namespace

bool wildcard_match(std::string_view pattern, std::string_view path) {
  const auto wanted = components(pattern);
  const auto given = components(path);
  // The same way as inside a component, one level up: "**" takes any number of components.
  std::size_t w = 0, g = 0, star = std::string_view::npos, retry = 0;
  while (g < given.size()) {
    if (w < wanted.size() && wanted[w] == "**") {
      star = w++;
      // A trailing "**" takes what is inside, not the folder itself.
      if (w == wanted.size()) return g < given.size();
      retry = g;
    } else if (w < wanted.size() && match_component(wanted[w], given[g])) {
      ++w, ++g;
    } else if (star != std::string_view::npos) {
      w = star + 1;
      g = ++retry;
    } else {
      return false;
    }
  }
  return w == wanted.size();
}

IgnoreRules IgnoreRules::parse(std::string_view text) {
  IgnoreRules rules;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark of an editor
  while (!text.empty()) {
    const auto end = text.find('\n');
    std::string line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.pop_back();
    if (line.starts_with('#')) continue;
    while (line.ends_with(' ') && !(line.size() > 1 && line[line.size() - 2] == '\\')) line.pop_back();
    Rule rule;
    if (line.starts_with('!')) {
      rule.negated = true;
      line.erase(0, 1);
    }
    if (line.ends_with('/')) {
      rule.folders_only = true;
      line.pop_back();
    }
    if (line.empty()) continue;
    rule.anywhere = line.find('/') == std::string::npos;
    if (line.starts_with('/')) line.erase(0, 1);
    rule.pattern = std::move(line);
    rules.rules_.push_back(std::move(rule));
  }
  return rules;
}

std::optional<bool> IgnoreRules::decide(std::string_view path, bool folder) const {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if (rule->folders_only && !folder) continue;
    if (wildcard_match(rule->pattern, rule->anywhere ? name : path)) return !rule->negated;
  }
  return std::nullopt;
}

}  // namespace dsec::layers
