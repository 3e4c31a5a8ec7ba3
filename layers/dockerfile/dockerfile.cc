#include "layers/dockerfile/dockerfile.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/http/shown_url.h"
#include "layers/dockerfile/words.h"

namespace dsec::layers::dockerfile {
namespace {

constexpr std::array<std::string_view, 18> kInstructions = {
    "ADD",   "ARG",        "CMD",     "COPY", "ENTRYPOINT", "ENV",        "EXPOSE", "FROM",   "HEALTHCHECK",
    "LABEL", "MAINTAINER", "ONBUILD", "RUN",  "SHELL",      "STOPSIGNAL", "USER",   "VOLUME", "WORKDIR"};
constexpr std::size_t kMostHeredocs = 64;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

std::string_view trimmed_left(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  return text;
}
std::string_view trimmed(std::string_view text) {
  text = trimmed_left(text);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string in_case(std::string_view text, int (*change)(int)) {
  std::string out;
  for (const char c : text) out += static_cast<char>(change(static_cast<unsigned char>(c)));
  return out;
}

/// A word like 3<<-"EOF".
std::optional<Heredoc> heredoc_of(std::string_view word) {
  while (!word.empty() && word.front() >= '0' && word.front() <= '9') word.remove_prefix(1);
  if (!word.starts_with("<<")) return std::nullopt;
  word.remove_prefix(2);
  Heredoc heredoc;
  if (word.starts_with('-')) {
    heredoc.chomp = true;
    word.remove_prefix(1);
  }
  if (word.empty() || word.find('<') != std::string_view::npos) return std::nullopt;
  for (const char c : word) {
    if (c == '\'' || c == '"' || c == '\\')
      heredoc.expand = false;
    else
      heredoc.name += c;
  }
  if (heredoc.name.empty()) return std::nullopt;
  return heredoc;
}

class Parser {
 public:
  Parser(std::string_view text, std::string origin) : text_(text) {
    file_.origin = std::move(origin);
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  Dockerfile run() {
    if (text_.size() > kLargestDockerfile) throw fail(1, "a Dockerfile has at most 1 MiB");
    if (const std::size_t at = text_.find('\0'); at != std::string_view::npos)
      throw fail(1 + static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n')),
                 "a byte 0 is no text");
    directives();
    while (more()) {
      const int first = line_ + 1;
      const std::string_view start = trimmed(next());
      if (start.empty() || start.front() == '#') continue;
      instruction(logical_line(start), first);
    }
    if (file_.instructions.empty()) throw fail(line_ > 0 ? line_ : 1, "there is no instruction");
    return std::move(file_);
  }

 private:
  Error fail(int line, const std::string& text) const {
    return usage_error(file_.origin + ":" + std::to_string(line) + ": " + text);
  }

  bool more() const { return !text_.empty(); }

  std::string_view next() {
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    std::string_view line = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    ++line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  // "# key=value" lines at the very top; the first other line ends them.
  void directives() {
    std::vector<std::string> seen;
    while (more()) {
      const std::string_view rest = text_;
      std::string_view line = trimmed(next());
      if (take_directive(line, seen)) continue;
      text_ = rest;
      --line_;
      return;
    }
  }

  bool take_directive(std::string_view line, std::vector<std::string>& seen) {
    if (!line.starts_with('#')) return false;
    line = trimmed(line.substr(1));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string key = in_case(trimmed(line.substr(0, equals)), std::tolower);
    const std::string value(trimmed(line.substr(equals + 1)));
    if (key != "syntax" && key != "escape" && key != "check") return false;
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      throw fail(line_, "the directive " + key + " stands twice");
    seen.push_back(key);
    if (key == "escape") {
      if (value != "\\" && value != "`") throw fail(line_, "escape is \\ or `, not " + quote(value));
      file_.escape = value[0];
    }
    if (key == "syntax") {
      const std::string_view image = std::string_view(value).substr(value.starts_with("docker.io/") ? 10 : 0);
      if (!image.starts_with("docker/dockerfile"))
        throw fail(line_, "syntax " + quote(value) + " asks for another reader of Dockerfiles")
            .hint("leave the line out, or write docker/dockerfile:1, if the file is an ordinary one");
    }
    return true;
  }

  // Whether another line follows; takes the escape character off.
  bool continues(std::string_view& line) const {
    std::string_view end = line;
    while (!end.empty() && (end.back() == ' ' || end.back() == '\t')) end.remove_suffix(1);
    if (!end.ends_with(file_.escape)) return false;
    end.remove_suffix(1);
    if (end.ends_with(file_.escape)) return false;
    line = end;
    return true;
  }

  std::string logical_line(std::string_view line) {
    std::string joined;
    bool goes_on = continues(line);
    joined += line;
    while (goes_on && more()) {
      line = next();
      const std::string_view shown = trimmed(line);
      if (shown.empty() || shown.front() == '#') continue;
      goes_on = continues(line);
      joined += line;
    }
    return std::string(trimmed(joined));
  }

  void instruction(const std::string& line, int first) {
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    Instruction made;
    made.line = first;
    made.keyword = in_case(line.substr(0, end), std::toupper);
    if (std::find(kInstructions.begin(), kInstructions.end(), made.keyword) == kInstructions.end()) {
      const std::vector<std::string> known(kInstructions.begin(), kInstructions.end());
      Error error = fail(first, "unknown instruction " + quote(line.substr(0, std::min<std::size_t>(end, 40))));
      for (const std::string& near : nearest_names(made.keyword, known, 1)) error.hint("did you mean " + near + "?");
      throw error;
    }
    made.text = trimmed(std::string_view(line).substr(end));
    if (made.text.empty()) throw error_at(file_.origin, made, "it says nothing more");
    take_flags(made);
    if (made.keyword == "RUN" || made.keyword == "COPY" || made.keyword == "ADD") take_heredocs(made);
    if (made.keyword == "ONBUILD") keep_heredocs(made);
    file_.instructions.push_back(std::move(made));
  }

  // A trigger is kept as text, here-documents and all.
  void keep_heredocs(Instruction& made) {
    const std::string kept = in_case(made.text.substr(0, made.text.find_first_of(" \t")), std::toupper);
    if (kept != "RUN" && kept != "COPY" && kept != "ADD") return;
    take_heredocs(made);
    for (const Heredoc& heredoc : std::exchange(made.heredocs, {})) made.text += "\n" + heredoc.content + heredoc.name;
  }

  void take_flags(Instruction& made) {
    std::string_view rest = made.text;
    while (rest.starts_with("--")) {
      const std::size_t end = flag_end(rest);
      std::string_view flag = rest.substr(2, end - 2);
      rest = trimmed_left(rest.substr(end));
      if (flag.empty()) break;
      const std::size_t equals = flag.find('=');
      Flag taken{std::string(flag.substr(0, equals)), "", equals != std::string_view::npos};
      if (taken.has_value) taken.value = flag.substr(equals + 1);
      // A mount has quotes of its own, around fields.
      if (taken.name != "mount") taken.value = without_quotes(std::move(taken.value));
      made.flags.push_back(std::move(taken));
    }
    made.text = std::string(rest);
  }

  // "30s" without the quotes around all of it. Where there is something to replace, they say how.
  std::string without_quotes(std::string value) const {
    if (value.size() < 2 || (value.front() != '"' && value.front() != '\'')) return value;
    const std::string inside = value.substr(1, value.size() - 2);
    const bool plain = inside.find_first_of(std::string("$\"'") + file_.escape) == std::string::npos;
    return plain && value.back() == value.front() ? inside : value;
  }

  // Blanks in quotes do not end a flag.
  std::size_t flag_end(std::string_view text) const {
    char mark = 0;
    std::size_t at = 0;
    for (; at < text.size() && (mark || !is_blank(text[at])); ++at) {
      if (text[at] == file_.escape && at + 1 < text.size())
        ++at;
      else if (text[at] == mark)
        mark = 0;
      else if (!mark && (text[at] == '"' || text[at] == '\''))
        mark = text[at];
    }
    return at;
  }

  void take_heredocs(Instruction& made) {
    if (made.text.find("<<") == std::string::npos) return;
    std::vector<std::string> words;
    try {
      words = split_words(made.text, file_.escape);
    } catch (const Error&) {
      words = split_fields(made.text);  // an apostrophe in a shell's text
    }
    for (const std::string& word : words) {
      std::optional<Heredoc> heredoc = heredoc_of(word);
      if (!heredoc) continue;
      if (made.heredocs.size() == kMostHeredocs)
        throw error_at(file_.origin, made, "it has more than " + std::to_string(kMostHeredocs) + " here-documents");
      read_heredoc(made, *heredoc);
      made.heredocs.push_back(*std::move(heredoc));
    }
  }

  void read_heredoc(const Instruction& made, Heredoc& heredoc) {
    while (more()) {
      std::string_view line = next();
      if (heredoc.chomp)
        while (line.starts_with('\t')) line.remove_prefix(1);
      if (line == heredoc.name) return;
      heredoc.content += line;
      heredoc.content += '\n';
    }
    throw error_at(file_.origin, made, "the here-document " + quote(heredoc.name) + " has no end");
  }

  std::string_view text_;
  int line_ = 0;  // read so far
  Dockerfile file_;
};

std::string with_shown_urls(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t blank = std::min(text.find_first_of(" \t\n", at), text.size());
    const std::string word = text.substr(at, blank - at);
    out += word.find("://") == std::string::npos ? word : http::shown_url(word);
    if (blank < text.size()) out += text[blank];
    at = blank + 1;
  }
  return out;
}

}  // namespace

std::string Instruction::brief() const {
  constexpr std::size_t kLongest = 60;
  std::string out = (trigger ? "ONBUILD " : "") + keyword + " " + (keyword == "ADD" ? with_shown_urls(text) : text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  if (out.size() <= kLongest) return out;
  std::size_t end = kLongest - 3;
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;  // no half of a character
  out = out.substr(0, end) + "...";
  return out;
}

Dockerfile Dockerfile::parse(std::string_view text, std::string origin) {
  return Parser(text, std::move(origin)).run();
}

Instruction parse_trigger(const std::string& text) {
  const Dockerfile parsed = Dockerfile::parse(text, "trigger");
  Instruction trigger = parsed.instructions.front();
  if (parsed.instructions.size() != 1) throw usage_error("it is more than one instruction");
  for (const std::string_view never : {"FROM", "MAINTAINER", "ONBUILD"})
    if (trigger.keyword == never) throw usage_error(trigger.keyword + " cannot stand behind ONBUILD");
  trigger.trigger = true;
  return trigger;
}

Error error_at(const std::string& origin, const Instruction& instruction, const std::string& text) {
  return usage_error(origin + ":" + std::to_string(instruction.line) + ": " + (instruction.trigger ? "ONBUILD " : "") +
                     instruction.keyword + ": " + text);
}

}  // namespace dsec::layers::dockerfile
