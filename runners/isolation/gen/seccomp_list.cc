#include "runners/isolation/gen/seccomp_list.h"

#include <cerrno>
#include <sstream>
#include <stdexcept>

namespace dsec::seccomp_gen {
namespace {

Action errno_named(const std::string& name) {
  static const std::map<std::string, int> known = {
      {"EPERM", EPERM}, {"ENOSYS", ENOSYS}, {"EINVAL", EINVAL}, {"EAFNOSUPPORT", EAFNOSUPPORT}};
  const auto found = known.find(name);
  if (found == known.end()) throw std::runtime_error("unknown error name " + name);
  return found->second;
}

/// "allow" or "errno NAME".
Action read_action(std::istream& words) {
  std::string word;
  words >> word;
  if (word == "allow") return 0;
  if (word != "errno") throw std::runtime_error("expected allow or errno, not '" + word + "'");
  words >> word;
  return errno_named(word);
}

std::uint32_t read_number(const std::string& text) {
  std::size_t used = 0;
  const unsigned long value = std::stoul(text, &used, 0);
  if (used != text.size() || value > 0xffffffffUL) throw std::runtime_error("not a 32-bit number: " + text);
  return static_cast<std::uint32_t>(value);
}

Clause read_clause(std::istream& words) {
  Clause clause{.terms = {}, .action = read_action(words)};
  std::string joint, argument, op, value;
  for (std::string expected = "if"; words >> joint; expected = "and") {
    if (joint != expected || !(words >> argument >> op >> value))
      throw std::runtime_error("expected '" + expected + " argN OP NUMBER'");
    if (argument.size() != 4 || argument.rfind("arg", 0) != 0 || argument[3] < '0' || argument[3] > '5')
      throw std::runtime_error("no argument: " + argument);
    if (op != "==" && op != "&") throw std::runtime_error("unknown operator " + op);
    clause.terms.push_back({.argument = static_cast<unsigned>(argument[3] - '0'),
                            .op = op == "==" ? Term::Op::Equal : Term::Op::AnyBit,
                            .value = read_number(value)});
  }
  return clause;
}

void add_plain(List& list, const std::string& word, Action action) {
  const auto equals = word.find('=');
  Rule rule{.clauses = {{.terms = {}, .action = action}}, .known_number = {}};
  if (equals != std::string::npos) rule.known_number = read_number(word.substr(equals + 1));
  if (!list.rules.emplace(word.substr(0, equals), std::move(rule)).second)
    throw std::runtime_error(word + " is listed twice");
}

void add_clause(List& list, std::istream& words) {
  std::string name;
  words >> name;
  Clause clause = read_clause(words);
  Rule& rule = list.rules[name];
  if (!rule.clauses.empty() && rule.clauses.back().terms.empty())
    throw std::runtime_error("a rule of " + name + " after its last one");
  rule.clauses.push_back(std::move(clause));
}

}  // namespace

List parse_list(std::string_view text) {
  List list;
  bool have_default = false;
  constexpr Action kNone = -1;
  Action current = kNone;  // of the open list of names
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    try {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string word;
      if (line[0] == ' ') {
        if (current == kNone) throw std::runtime_error("names without 'allow' or 'errno' above");
        while (words >> word) add_plain(list, word, current);
        continue;
      }
      current = kNone;
      words >> word;
      if (word == "default") {
        list.default_action = read_action(words);
        have_default = true;
      } else if (word == "rule") {
        add_clause(list, words);
      } else {
        std::istringstream again(line);
        current = read_action(again);
        while (again >> word) add_plain(list, word, current);
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(std::to_string(number) + ": " + error.what());
    }
  }
  if (!have_default || list.default_action == 0) throw std::runtime_error("0: no 'default errno'");
  for (const auto& [name, rule] : list.rules)
    if (!rule.clauses.back().terms.empty())
      throw std::runtime_error("0: the rules of " + name + " do not end without condition");
  return list;
}

std::map<std::string, unsigned> parse_numbers(std::string_view defines) {
  std::map<std::string, std::string> values;
  std::istringstream lines{std::string(defines)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string define, name, value;
    if (words >> define >> name >> value && name.rfind("__NR", 0) == 0) values.emplace(name, value);
  }
  std::map<std::string, unsigned> numbers;
  for (const auto& [name, value] : values) {
    if (name.rfind("__NR_", 0) != 0) continue;
    std::string end = value;
    for (int hops = 0; hops < 8; ++hops) {
      const auto alias = values.find(end);
      if (alias == values.end()) break;
      end = alias->second;
    }
    if (end.find_first_not_of("0123456789") == std::string::npos)
      numbers.emplace(name.substr(5), static_cast<unsigned>(std::stoul(end)));
  }
  numbers.erase("syscalls");  // the count in asm-generic, not a call
  numbers.erase("syscall_compat_max");
  return numbers;
}

std::map<unsigned, Rule> rules_by_number(const List& list, const std::map<std::string, unsigned>& numbers) {
  std::map<unsigned, Rule> result;
  for (const auto& [name, rule] : list.rules) {
    const auto found = numbers.find(name);
    if (found != numbers.end()) {
      result.emplace(found->second, rule);
    } else if (rule.known_number) {
      result.emplace(*rule.known_number, rule);
    }
  }
  return result;
}

}  // namespace dsec::seccomp_gen
