#include "layers/dockerfile/words.h"

#include <utility>

#include "core/base/error.h"
#include "layers/dockerfile/glob.h"

namespace dsec::layers::dockerfile {
namespace {

constexpr int kDeepest = 32;
// A pattern is tried at every place of a value.
constexpr std::size_t kLongestMatched = 512, kLongestPattern = 64;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string without_suffix(const std::string& value, const Glob& glob, bool longest) {
  std::optional<std::size_t> cut;
  for (std::size_t at = value.size() + 1; at-- > 0 && (longest || !cut);)
    if (glob.matches(std::string_view(value).substr(at))) cut = at;
  return value.substr(0, cut.value_or(value.size()));
}

std::string replaced(const std::string& value, const Glob& glob, const std::string& by, bool all) {
  std::string out;
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t size = glob.front(std::string_view(value).substr(at), true).value_or(0);
    if (size == 0) {
      out += value[at++];
      continue;
    }
    out += by;
    at += size;
    if (!all) return out + value.substr(at);
  }
  return out;
}

class Expander {
 public:
  Expander(std::string_view text, const Expansion& expansion, int depth)
      : text_(text), expansion_(expansion), depth_(depth) {
    if (depth > kDeepest) throw usage_error("variables are nested deeper than " + std::to_string(kDeepest));
  }

  std::string run() {
    while (at_ < text_.size()) plain();
    return std::move(out_);
  }

 private:
  void put(std::string_view text) {
    if (out_.size() + text.size() > kLongestText)
      throw usage_error("the text that its variables make is longer than " + std::to_string(kLongestText) + " bytes");
    out_ += text;
  }

  void plain() {
    const char c = text_[at_++];
    if (c == '$') return put(variable());
    if (c == '\'' && !expansion_.keep_quotes) {
      const std::size_t end = text_.find('\'', at_);
      if (end == std::string_view::npos) throw usage_error("a single quote is not closed");
      put(text_.substr(at_, end - at_));
      at_ = end + 1;
      return;
    }
    if (c == '"' && !expansion_.keep_quotes) return quoted();
    if (c == expansion_.escape && !expansion_.keep_quotes) {
      if (at_ < text_.size()) put(text_.substr(at_++, 1));
      return;
    }
    if (c == expansion_.escape && at_ < text_.size() && text_[at_] == '$') return put(text_.substr(at_++, 1));
    put({&c, 1});
  }

  void quoted() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return;
      if (c == '$') {
        put(variable());
      } else if (c == expansion_.escape && at_ < text_.size() &&
                 (text_[at_] == '"' || text_[at_] == '$' || text_[at_] == expansion_.escape)) {
        put(text_.substr(at_++, 1));
      } else {
        put({&c, 1});
      }
    }
    throw usage_error("a double quote is not closed");
  }

  std::string name() {
    const std::size_t first = at_;
    if (at_ < text_.size() && is_digit(text_[at_])) return std::string(text_.substr(at_++, 1));
    while (at_ < text_.size() && (begins_name(text_[at_]) || (at_ > first && is_digit(text_[at_])))) ++at_;
    return std::string(text_.substr(first, at_ - first));
  }

  // Up to the '}' that closes, or `stop` outside of nested braces, neither being part of it.
  std::string_view word(char stop = '}') {
    const std::size_t first = at_;
    int open = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == expansion_.escape && at_ + 1 < text_.size())
        ++at_;
      else if (c == '{' && at_ > 0 && text_[at_ - 1] == '$')
        ++open;
      else if (open == 0 && (c == '}' || c == stop))
        return text_.substr(first, at_ - first);
      else if (c == '}')
        --open;
    }
    throw usage_error("'${' is not closed by '}'");
  }

  std::string expanded(std::string_view text) const { return Expander(text, expansion_, depth_ + 1).run(); }

  std::string variable() {
    if (at_ >= text_.size()) return "$";
    if (text_[at_] != '{') {
      const std::string plain_name = name();
      return plain_name.empty() ? "$" : expansion_.lookup(plain_name).value_or("");
    }
    ++at_;
    const std::string braced = name();
    if (braced.empty()) throw usage_error("'${' is not followed by a variable's name");
    const std::string value = substituted(braced, expansion_.lookup(braced));
    if (at_ >= text_.size() || text_[at_] != '}') throw usage_error("'${' is not closed by '}'");
    ++at_;
    return value;
  }

  // What the operator behind the name makes of the value; stops at the '}'.
  std::string substituted(const std::string& of, std::optional<std::string> value) {
    if (at_ >= text_.size() || text_[at_] == '}') return value.value_or("");
    char op = text_[at_++];
    if (op == ':') {
      if (at_ >= text_.size()) throw usage_error("'${' is not closed by '}'");
      op = text_[at_++];
      if (op != '-' && op != '+' && op != '?')
        throw usage_error("${" + of + ":" + op + "…} is no form of substitution");
      if (value && value->empty()) value.reset();
    }
    switch (op) {
      case '-': {
        const std::string_view otherwise = word();
        return value ? *value : expanded(otherwise);
      }
      case '+': {
        const std::string_view instead = word();
        return value ? expanded(instead) : "";
      }
      case '?': {
        const std::string why = expanded(word());
        if (!value) throw usage_error("the variable " + of + " has no value" + (why.empty() ? "" : ": " + why));
        return *value;
      }
      case '#':
      case '%':
      case '/':
        return matched(of, op, value.value_or(""));
      default:
        throw usage_error("${" + of + op + "…} is no form of substitution");
    }
  }

  std::string matched(const std::string& of, char op, const std::string& value) {
    if (value.size() > kLongestMatched)
      throw usage_error("the value of " + of + " is too long to match patterns in: more than " +
                        std::to_string(kLongestMatched) + " bytes");
    const bool twice = at_ < text_.size() && text_[at_] == op;
    if (twice) ++at_;
    // `*` of the shell crosses '/'.
    std::string pattern;
    for (const char c : expanded(word(op == '/' ? '/' : '}'))) pattern += c == '*' ? "**" : std::string(1, c);
    if (pattern.size() > kLongestPattern)
      throw usage_error("the pattern in ${" + of + "…} is longer than " + std::to_string(kLongestPattern) + " bytes");
    const Glob glob = Glob::parse(across(pattern), Glob::Stars::Names);
    if (op == '#') return value.substr(glob.front(value, twice).value_or(0));
    if (op == '%') return without_suffix(value, glob, twice);
    std::string by;
    if (at_ < text_.size() && text_[at_] == '/') {
      ++at_;
      by = expanded(word());
    }
    std::string out = replaced(value, glob, by, twice);
    if (out.size() > kLongestText) throw usage_error("the value of " + of + " gets too long");
    return out;
  }

  // `**/` would be any number of whole names.
  static std::string across(const std::string& pattern) {
    std::string out;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] == '/' && i > 0 && pattern[i - 1] == '*') out += '\\';
      out += pattern[i];
    }
    return out;
  }

  std::string_view text_;
  const Expansion& expansion_;
  int depth_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string expand(std::string_view text, const Expansion& expansion) { return Expander(text, expansion, 0).run(); }

std::vector<std::string> split_words(std::string_view text, char escape) {
  std::vector<std::string> words;
  std::string word;
  bool any = false;
  char quote_mark = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!quote_mark && is_blank(c)) {
      if (any) words.push_back(std::exchange(word, {}));
      any = false;
      continue;
    }
    any = true;
    word += c;
    if (c == escape && quote_mark != '\'' && i + 1 < text.size())
      word += text[++i];
    else if (c == quote_mark)
      quote_mark = 0;
    else if (!quote_mark && (c == '"' || c == '\''))
      quote_mark = c;
  }
  if (quote_mark) throw usage_error(std::string("a quote (") + quote_mark + ") is not closed");
  if (any) words.push_back(std::move(word));
  return words;
}

std::vector<std::string> split_fields(std::string_view text) {
  std::vector<std::string> fields;
  std::string field;
  for (const char c : text) {
    if (!is_blank(c)) {
      field += c;
    } else if (!field.empty()) {
      fields.push_back(std::exchange(field, {}));
    }
  }
  if (!field.empty()) fields.push_back(std::move(field));
  return fields;
}

}  // namespace dsec::layers::dockerfile
