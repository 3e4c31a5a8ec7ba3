#include "cli/command.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kWidth = 100, kIndent = 2, kColumn = 30;

// Words of `text` from column kColumn on, broken at kWidth; the cursor stands at `column`.
void wrap(std::string& out, const std::string& text, std::size_t column, std::size_t left) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (column > left && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(left, ' ');
      column = left;
    } else if (column > left) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    begin = end + 1;
  }
  out += '\n';
}

void row(std::string& out, const std::string& left, const std::string& right) {
  std::string head = std::string(kIndent, ' ') + left;
  if (head.size() + 2 > kColumn) {
    out += head + "\n" + std::string(kColumn, ' ');
  } else {
    out += head + std::string(kColumn - head.size(), ' ');
  }
  wrap(out, right, kColumn, kColumn);
}

std::string label(const Argument& argument) {
  if (argument.positional) return argument.names + (argument.repeats ? "..." : "");
  // Long names start in one column, whether or not there is a short one.
  std::string names;
  for (const char c : argument.names) names += c == ',' ? std::string(", ") : std::string(1, c);
  if (names.rfind("--", 0) == 0) names = "    " + names;
  return argument.value.empty() ? names : names + " " + argument.value;
}

}  // namespace

std::string Command::usage() const {
  std::string text = "Usage: " + path();
  if (!children_.empty()) return text + " COMMAND\n";
  text += " [OPTIONS]";
  for (const Argument& argument : arguments_) {
    if (!argument.positional) continue;
    const std::string name = argument.names + (argument.repeats ? "..." : "");
    text += argument.required ? " " + name : " [" + name + "]";
  }
  if (tail_) text += dashes_needed_ ? " [-- COMMAND...]" : " [--] COMMAND...";
  return text + "\n";
}

std::string Command::help() const {
  std::string out = summary_ + "\n\n" + usage();
  if (!children_.empty()) {
    out += "\nCommands:\n";
    for (const auto& command : children_) row(out, command->name(), command->summary());
    for (const auto& text : notes_) out += "\n" + text + "\n";
    return out + "\nTry '" + path() + " COMMAND --help' for the options of a command.\n";
  }
  bool heading = false;
  for (const Argument& argument : arguments_) {
    if (!argument.positional) continue;
    out += heading ? "" : "\nArguments:\n";
    heading = true;
    row(out, label(argument), argument.help);
  }
  out += "\nOptions:\n";
  for (const Argument& argument : arguments_)
    if (!argument.positional) row(out, label(argument), argument.help);
  row(out, "-h, --help", "Show this help");
  for (const auto& text : notes_) {
    out += '\n';
    wrap(out, text, 0, 0);
  }
  if (!examples_.empty()) out += "\nExamples:\n";
  for (const auto& text : examples_) out += "  " + text + "\n";
  return out;
}

}  // namespace dsec::cli
