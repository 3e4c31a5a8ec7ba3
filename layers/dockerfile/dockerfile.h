#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace dsec::layers::dockerfile {

struct Heredoc {
  std::string name;
  bool expand = true;   ///< its name stood without quotes
  bool chomp = false;   ///< `<<-`: tabs at the beginning of lines are taken off
  std::string content;  ///< each line with its newline
};

struct Flag {
  std::string name, value;  ///< "--NAME=VALUE"
  bool has_value = false;
};

struct Instruction {
  std::string keyword;  ///< in capitals, one that is known
  int line = 0;         ///< where it begins, from 1
  std::vector<Flag> flags;
  std::string text;  ///< what follows the flags, its lines joined as continuation lines are
  std::vector<Heredoc> heredocs;
  bool trigger = false;  ///< an ONBUILD of what a stage is FROM; `line` is that of the FROM

  /// "RUN make", one line of at most 60 characters. URLs of ADD without what may open a door.
  std::string brief() const;
};

/// A Dockerfile taken apart, its variables not replaced yet.
struct Dockerfile {
  std::string origin;  ///< for messages
  char escape = '\\';
  std::vector<Instruction> instructions;

  /// Throws Error (Usage) as ORIGIN:LINE: text, with the nearest instruction for an unknown one.
  static Dockerfile parse(std::string_view text, std::string origin);
};

/// What an ONBUILD holds back: "RUN make". Throws Error (Usage) for what cannot stand there.
Instruction parse_trigger(const std::string& text);

/// The most that a Dockerfile or a .dockerignore may have.
constexpr std::uint64_t kLargestDockerfile = 1 << 20;

/// "Dockerfile:3: RUN: text".
Error error_at(const std::string& origin, const Instruction& instruction, const std::string& text);

}  // namespace dsec::layers::dockerfile
