#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace dsec::engine {

/// A session that is open.
struct SessionInfo {
  std::string id;  ///< a number: the exec id of its shell
  std::string name;
  std::vector<std::string> shell;  ///< argv
  bool tty = false;
  std::chrono::system_clock::time_point opened;
  std::uint32_t commands = 0;  ///< that were run in it
  std::string running;         ///< exec id of the command that runs, or empty
};

}  // namespace dsec::engine
