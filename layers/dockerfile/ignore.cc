#include "layers/dockerfile/ignore.h"

#include <filesystem>
#include <string>

#include "core/base/error.h"

namespace dsec::layers::dockerfile {
namespace {

constexpr std::string_view kBlank = " \t\r\v\f";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Whether the pattern fits the path or a directory that it lies in.
bool fits(const Glob& glob, std::string_view path) {
  for (std::size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/', slash + 1))
    if (glob.matches(path.substr(0, slash))) return true;
  return glob.matches(path);
}

}  // namespace

IgnoreList IgnoreList::parse(std::string_view text, std::string_view origin) {
  IgnoreList list;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view pattern = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (pattern.starts_with('#')) continue;
    try {
      list.add(trimmed(pattern), line);
    } catch (const Error& error) {
      throw usage_error(std::string(origin) + ":" + std::to_string(line) + ": " + error.message());
    }
  }
  return list;
}

void IgnoreList::add(std::string_view pattern) { add(pattern, static_cast<int>(rules_.size()) + 1); }

void IgnoreList::add(std::string_view pattern, int number) {
  const bool exception = pattern.starts_with('!');
  if (exception) pattern = trimmed(pattern.substr(1));
  if (pattern.empty()) {
    if (exception) throw usage_error("'!' without a pattern");
    return;
  }
  std::string clean = std::filesystem::path(pattern).lexically_normal().native();
  while (clean.ends_with('/')) clean.pop_back();
  while (clean.starts_with('/')) clean.erase(0, 1);
  // The context itself cannot be left out.
  if (clean.empty() || clean == ".") return;
  rules_.push_back({Glob::parse(clean, Glob::Stars::Names), exception, number});
  exceptions_ = exceptions_ || exception;
}

int IgnoreList::excluded_by(std::string_view path) const {
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule)
    if (fits(rule->glob, path)) return rule->exception ? 0 : rule->number;
  return 0;
}

}  // namespace dsec::layers::dockerfile
