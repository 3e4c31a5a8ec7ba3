#pragma once

#include <termios.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace dsec::cli {

/// Standard input and output are a terminal and we are in its foreground, so that a command in a sandbox can have a
/// TTY.
bool on_terminal();

/// Rows and columns of the terminal; 24 and 80 when there is none.
std::pair<std::uint16_t, std::uint16_t> terminal_size();

/// While it lives every key goes to the command in the sandbox, Ctrl-C included; then the terminal is as before.
class RawTerminal {
 public:
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios before_{};
};

}  // namespace dsec::cli
