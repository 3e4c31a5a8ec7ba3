#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "core/base/error.h"

namespace dsec::cli {

bool on_terminal() {
  // In the background, changing the terminal would stop us.
  return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1 && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

std::pair<std::uint16_t, std::uint16_t> terminal_size() {
  winsize size{};
  for (const int fd : {STDOUT_FILENO, STDIN_FILENO, STDERR_FILENO})
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) return {size.ws_row, size.ws_col};
  return {24, 80};
}

RawTerminal::RawTerminal() {
  if (::tcgetattr(STDIN_FILENO, &before_) != 0) throw system_error("read the settings of the terminal");
  termios raw = before_;
  ::cfmakeraw(&raw);
  if (::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) != 0) throw system_error("set the terminal to raw mode");
}

RawTerminal::~RawTerminal() { ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_); }

}  // namespace dsec::cli
