#include "core/engine/normalise.h"

#include <regex.h>

#include <algorithm>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

struct BuiltIn {
  const char* expression;
  const char* replacement;
};
// In this order: a time is recognised before the numbers in it are. \b and \< are extensions of the C library.
constexpr BuiltIn kBuiltIn[] = {
    {"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.,][0-9]+)?( ?(Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?",
     "<time>"},
    {"\\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun),? ([0-9]{1,2} )?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) "
     "[ 0-9:]+( ?(AM|PM|UTC|GMT|[+-][0-9]{4}))?( [0-9]{4})?",
     "<time>"},
    {"\\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +[0-9]{1,2} +([0-9]{1,2}:[0-9]{2}(:[0-9]{2})?|[0-9]{4})",
     "<time>"},
    {"\\b[0-9]{4}-[0-9]{2}-[0-9]{2}\\b", "<date>"},
    {"\\b[0-9]{1,2}:[0-9]{2}:[0-9]{2}([.,][0-9]+)?\\b", "<time>"},
    {"\\b[0-9]+m[0-9]+([.][0-9]+)?s\\b", "<duration>"},
    {"\\b[0-9]+([.][0-9]+)? ?(ns|us|ms|s|sec|secs|second|seconds|min|mins|minute|minutes)\\b", "<duration>"},
    {"\\b0x[0-9a-fA-F]{5,16}\\b", "<address>"},
    {"/tmp/[^/ '\":;,)]*", "/tmp/<name>"},
    {"\\b([Pp][Ii][Dd]|[Pp]rocess)([ =:#]*)[0-9]+", "<pid>"},
    {"\\[[0-9]{2,}\\]", "[<pid>]"},
};

}  // namespace

struct Normaliser::Rule {
  Rule(const std::string& expression, std::string with) : replacement(std::move(with)) {
    if (const int error = ::regcomp(&compiled, expression.c_str(), REG_EXTENDED); error != 0) {
      char text[256];
      ::regerror(error, nullptr, text, sizeof text);
      throw usage_error(quote(expression) + " is no extended regular expression: " + text);
    }
  }
  ~Rule() { ::regfree(&compiled); }
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;

  std::string apply(const std::string& line) const {
    std::string out;
    const char* at = line.c_str();
    regmatch_t match;
    for (int flags = 0; ::regexec(&compiled, at, 1, &match, flags) == 0; flags = REG_NOTBOL) {
      if (match.rm_eo == match.rm_so) break;
      out.append(at, static_cast<std::size_t>(match.rm_so)).append(replacement);
      at += match.rm_eo;
    }
    return out.append(at, line.c_str() + line.size());
  }

  regex_t compiled;
  std::string replacement;
};

Normaliser::Normaliser() {
  for (const BuiltIn& rule : kBuiltIn) built_in_.push_back(std::make_unique<Rule>(rule.expression, rule.replacement));
}
Normaliser::~Normaliser() = default;
Normaliser::Normaliser(Normaliser&&) noexcept = default;

void Normaliser::add(const std::string& expression, const std::string& replacement) {
  auto rule = std::make_unique<Rule>(expression, replacement);
  if (::regexec(&rule->compiled, "", 0, nullptr, 0) == 0)
    throw usage_error(quote(expression) + " matches nothing at all, and so everywhere");
  rules_.push_back(std::move(rule));
}

void Normaliser::add_literal(const std::string& text, const std::string& replacement) {
  if (!text.empty()) literals_.emplace_back(text, replacement);
}

void Normaliser::add_file(std::string_view content, const std::string& origin) {
  std::size_t number = 0;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    const std::string line(content.substr(0, end));
    content.remove_prefix(std::min(end + 1, content.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::size_t tab = line.find('\t');
    attempt(origin + ":" + std::to_string(number), [&] {
      if (tab == std::string::npos) throw usage_error("a rule is an expression, a tab, and what takes its place");
      add(line.substr(0, tab), line.substr(tab + 1));
    });
  }
}

std::string Normaliser::apply(std::string_view output) const {
  std::string all;
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    std::string line(output.substr(0, end));
    const bool ended = end < output.size();
    output.remove_prefix(std::min(end + 1, output.size()));
    for (const auto& [text, replacement] : literals_)
      for (std::size_t at = line.find(text); at != std::string::npos; at = line.find(text, at + replacement.size()))
        line.replace(at, text.size(), replacement);
    // A zero byte would end the line for the C library: what it cannot read stands as it is.
    if (line.find('\0') == std::string::npos) {
      for (const auto& rule : rules_) line = rule->apply(line);
      for (const auto& rule : built_in_) line = rule->apply(line);
    }
    all += line;
    if (ended) all += '\n';
  }
  return all;
}

}  // namespace dsec::engine
