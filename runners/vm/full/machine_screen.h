#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/engine/screen.h"
#include "runners/vm/qmp.h"

namespace dsec::runners {

struct ScreenSize {
  std::uint32_t width = 0, height = 0;
};

/// Width and height of a PNG file; throws Error when it is none.
ScreenSize size_of_png(std::string_view png);

/// Screen, keyboard and pointer of a machine that runs, by QEMU's monitor. One thread.
class MachineScreen {
 public:
  /// `directory`: of the sandbox. Throws Error, also when another holds the monitor for long.
  explicit MachineScreen(const std::filesystem::path& directory);

  std::string screenshot();
  void give(const engine::ScreenInput& input);

 private:
  void press(const std::vector<std::string>& chord);
  void move_to(engine::ScreenPoint point, ScreenSize size);
  void click(const std::string& button, std::uint32_t count);
  void hold(const std::string& button, bool down);
  void drag(const engine::ScreenInput& input, ScreenSize size);
  void send(const Json& events);

  const std::filesystem::path directory_;
  Qmp monitor_;
};

/// Asks the machine's system to turn itself off, as its button does.
void press_power_button(const std::filesystem::path& directory);

}  // namespace dsec::runners
