#include "layers/git/attributes.h"

#include <algorithm>
#include <optional>

#include "layers/dir/ignore_rules.h"

namespace dsec::layers {
namespace {

constexpr std::string_view kBlank = " \t\r";
constexpr std::size_t kLineLimit = 2048;       // git's own since 2.39.1
constexpr std::size_t kFileLimit = 100 << 20;  // the same

bool valid_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !name.empty() && name[0] != '-' && name.find_first_not_of(kAllowed) == std::string_view::npos;
}

void skip_blanks(std::string_view& text) { text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size())); }

std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find_first_of(kBlank));
  text.remove_prefix(word.size());
  return word;
}

// A pattern in quotes with C's escapes; empty when the quote does not end.
std::optional<std::string> take_quoted(std::string_view& text) {
  static constexpr std::string_view kNames = "abfnrtv\"\\", kValues = "\a\b\f\n\r\t\v\"\\";
  std::string out;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return out;
    }
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    const auto octal = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (const auto name = kNames.find(text[i]); name != std::string_view::npos) {
      out += kValues[name];
    } else if (text[i] <= '3' && octal(i) && octal(i + 1) && octal(i + 2)) {
      out += static_cast<char>((text[i] - '0') << 6 | (text[i + 1] - '0') << 3 | (text[i + 2] - '0'));
      i += 2;
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

// False when git ignores the line.
bool GitAttributes::read_line(std::string_view line, std::string& pattern, Settings& settings) {
  skip_blanks(line);
  if (line.empty() || line[0] == '#' || line.size() >= kLineLimit) return false;
  std::optional<std::string> quoted;
  if (line[0] == '"') quoted = take_quoted(line);
  pattern = quoted ? *quoted : std::string(take_word(line));
  for (skip_blanks(line); !line.empty(); skip_blanks(line)) {
    std::string_view word = take_word(line);
    GitAttribute value{GitAttribute::Kind::True, {}};
    if (word[0] == '-' || word[0] == '!') {
      value.kind = word[0] == '-' ? GitAttribute::Kind::False : GitAttribute::Kind::Unspecified;
      word.remove_prefix(1);
    }
    const auto equals = word.find('=');
    if (equals != std::string_view::npos && value.kind == GitAttribute::Kind::True)
      value = {GitAttribute::Kind::String, std::string(word.substr(equals + 1))};
    const std::string_view name = word.substr(0, equals);
    if (!valid_name(name)) return false;
    settings.emplace_back(name, std::move(value));
  }
  return true;
}

void GitAttributes::add_file(const std::string& folder, std::string_view text) {
  if (text.size() > kFileLimit) return;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  std::vector<Line>& lines = files_[folder];
  while (!text.empty()) {
    const std::string_view raw = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(raw.size() + 1, text.size()));
    Line line;
    if (!read_line(raw, line.pattern, line.settings)) continue;
    if (line.pattern.starts_with("[attr]")) {  // macros count in the root alone, the last definition wins
      const std::string name = line.pattern.substr(6);
      if (folder.empty() && valid_name(name)) macros_[name] = std::move(line.settings);
      continue;
    }
    // A "!" pattern means nothing here, and one for folders never fits a file.
    if (line.pattern.starts_with('!') || line.pattern.ends_with('/')) continue;
    line.by_name = line.pattern.find('/') == std::string::npos;
    if (line.pattern.starts_with('/')) line.pattern.erase(0, 1);
    lines.push_back(std::move(line));
  }
}

// The first that sets a name wins: callers go from what counts most to what counts least.
void GitAttributes::apply(const Settings& settings, std::map<std::string, GitAttribute>& found) const {
  for (auto setting = settings.rbegin(); setting != settings.rend(); ++setting) {
    if (!found.emplace(setting->first, setting->second).second) continue;
    const auto macro = macros_.find(setting->first);
    if (macro != macros_.end() && setting->second.kind == GitAttribute::Kind::True) apply(macro->second, found);
  }
}

std::map<std::string, GitAttribute> GitAttributes::look_up(std::string_view path) const {
  std::map<std::string, GitAttribute> found;
  const auto last = path.rfind('/');
  const std::string_view name = path.substr(last + 1);
  std::string folder(path.substr(0, last == std::string_view::npos ? 0 : last));
  while (true) {
    if (const auto file = files_.find(folder); file != files_.end()) {
      const std::string_view below = folder.empty() ? path : path.substr(folder.size() + 1);
      for (auto line = file->second.rbegin(); line != file->second.rend(); ++line)
        if (wildcard_match(line->pattern, line->by_name ? name : below)) apply(line->settings, found);
    }
    if (folder.empty()) return found;
    const auto slash = folder.rfind('/');
    folder.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace dsec::layers
