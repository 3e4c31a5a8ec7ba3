#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/base/unique_fd.h"

namespace dsec::engine {

/// In pixels from the upper left corner of a screen.
struct ScreenPoint {
  std::uint32_t x = 0, y = 0;
  bool operator==(const ScreenPoint&) const = default;
};

/// What a person does at a machine's screen, keyboard or mouse.
struct ScreenInput {
  enum class Kind { Type, Key, Move, Click, Scroll, Drag };
  Kind kind = Kind::Key;
  std::string text;               ///< Type: characters; Key: names of keys that are down together, "ctrl+alt+t"
  std::optional<ScreenPoint> at;  ///< where the pointer goes first; absent: it stays where it is
  std::optional<ScreenPoint> to;  ///< Drag: where it is let go
  std::string button = "left";    ///< Click, Drag: "left", "middle", "right"
  std::uint32_t count = 1;        ///< Click: how often; Scroll: by how many notches
  bool up = false;                ///< Scroll: else down
  bool operator==(const ScreenInput&) const = default;
};

/// As it is recorded; the inverse throws Error (Usage).
Json to_json(const ScreenInput& input);
ScreenInput screen_input_from(const Json& json);

/// A runner whose sandboxes have a screen. Throws Error.
class Screens {
 public:
  virtual ~Screens() = default;
  /// What is on it, as a PNG file.
  virtual std::string screenshot(const std::filesystem::path& directory) = 0;
  /// Returns when the machine has been given all of it.
  virtual void screen_input(const std::filesystem::path& directory, const ScreenInput& input) = 0;
  /// A connection to the machine's server of RFB (VNC), which asks for no password.
  virtual UniqueFd connect_screen(const std::filesystem::path& directory) = 0;
};

}  // namespace dsec::engine
