#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The list of system calls (seccomp.list) as data, for the program that compiles it and for the tests that check the
/// result. Host tool: neither in dsec nor in what enters a sandbox.
namespace dsec::seccomp_gen {

/// 0: allowed; else the call fails with this errno.
using Action = int;

struct Term {
  enum class Op { Equal, AnyBit };
  unsigned argument = 0;  ///< 0..5
  Op op = Op::Equal;
  std::uint32_t value = 0;  ///< against the lower 32 bits
};

/// `action` when all terms hold.
struct Clause {
  std::vector<Term> terms;
  Action action = 0;
};

struct Rule {
  std::vector<Clause> clauses;           ///< tried in order; the last has no terms
  std::optional<unsigned> known_number;  ///< for headers that do not know the name
};

struct List {
  Action default_action = 0;
  std::map<std::string, Rule> rules;  ///< by name of the call
};

/// Throws std::runtime_error "LINE: what is wrong".
List parse_list(std::string_view text);

/// name -> number from the output of `cc -dM -E` on asm/unistd.h ("#define __NR_read 0"); aliases are resolved.
std::map<std::string, unsigned> parse_numbers(std::string_view defines);

/// The calls of one architecture: number -> rule; numbers without one get the default.
std::map<unsigned, Rule> rules_by_number(const List& list, const std::map<std::string, unsigned>& numbers);

}  // namespace dsec::seccomp_gen
