#include "runners/vm/full/machine_screen.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/vm/full/keys.h"
#include "runners/vm/machine_root.h"
#include "runners/vm/vmm_socket.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
namespace {

constexpr milliseconds kPatience{30'000};
// Keyboards hold 16 events for a system that does not look, and programs take a press that is shorter for none.
constexpr milliseconds kPress{40}, kStep{15};
constexpr int kDragSteps = 20;
constexpr std::uint64_t kLargestPicture = 64ull << 20;
// QEMU's tablets have this many places in each direction.
constexpr std::uint64_t kTabletRange = 0x7fff;
constexpr std::uint32_t kMostTimes = 100;
constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1a\n";

void rest(milliseconds time) { std::this_thread::sleep_for(time); }

std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<unsigned char>(bytes[at + i]);
  return number;
}

std::string unused_name() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) throw system_error("get random bytes");
  return "screen-" + std::to_string(random) + ".png";
}

// Of a directory that the VMM writes to: it may be anything by now.
std::string take_picture(const fs::path& file) {
  const UniqueFd picture = open_file(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat info = {};
  if (::fstat(picture.get(), &info) != 0 || !S_ISREG(info.st_mode)) throw failure("the VMM left no picture");
  return read_all(picture.get(), kLargestPicture);
}

Json button_event(const std::string& button, bool down) {
  return {{"type", "btn"}, {"data", {{"down", down}, {"button", button}}}};
}

void check_button(const std::string& button) {
  static constexpr std::array<std::string_view, 3> kButtons = {"left", "middle", "right"};
  if (std::find(kButtons.begin(), kButtons.end(), button) == kButtons.end())
    throw usage_error(quote(button) + " is no button of a mouse").hint("left, middle or right");
}

}  // namespace

ScreenSize size_of_png(std::string_view png) {
  // The header chunk is the first: its length, its name, then both.
  constexpr std::size_t kWidthAt = 16;
  if (png.size() < kWidthAt + 8 || !png.starts_with(kPngMagic) || png.substr(12, 4) != "IHDR")
    throw failure("the picture is no PNG file");
  const ScreenSize size{number_at(png, kWidthAt), number_at(png, kWidthAt + 4)};
  if (size.width == 0 || size.height == 0 || size.width > 1 << 16 || size.height > 1 << 16)
    throw failure("the picture is no screen");
  return size;
}

MachineScreen::MachineScreen(const fs::path& directory)
    : directory_(directory),
      monitor_(connect_to_vmm(directory / kMachineDirectory / "control.sock", kPatience), kPatience) {}

std::string MachineScreen::screenshot() {
  return attempt("cannot take a picture of the screen", [&] {
    const std::string name = unused_name();
    const fs::path file = directory_ / kMachineDirectory / name;
    monitor_.execute("screendump", {{"filename", std::string(kMachineInside) + "/" + name}, {"format", "png"}},
                     kPatience);
    std::string picture = take_picture(file);
    ::unlink(file.c_str());
    size_of_png(picture);
    return picture;
  });
}

void MachineScreen::send(const Json& events) { monitor_.execute("input-send-event", {{"events", events}}, kPatience); }

void MachineScreen::press(const KeyChord& chord) {
  Json keys = Json::array();
  for (const std::string& key : chord) keys.push_back({{"type", "qcode"}, {"data", key}});
  // QEMU lets them go by itself, in the opposite order: a key that turns the machine off could not be let go from here.
  monitor_.execute("send-key", {{"keys", keys}, {"hold-time", kPress.count()}}, kPatience);
  rest(kPress * 2 * static_cast<int>(chord.size()));
}

void MachineScreen::move_to(engine::ScreenPoint point, ScreenSize size) {
  if (point.x >= size.width || point.y >= size.height)
    throw usage_error("the screen is " + std::to_string(size.width) + " by " + std::to_string(size.height) +
                      " pixels, and has no " + std::to_string(point.x) + "," + std::to_string(point.y));
  const auto place = [](std::uint32_t at, std::uint32_t length) {
    // The middle of the pixel.
    return (2 * std::uint64_t{at} + 1) * kTabletRange / (2 * std::uint64_t{length});
  };
  const auto axis = [](const char* name, std::uint64_t value) -> Json {
    return {{"type", "abs"}, {"data", {{"axis", name}, {"value", value}}}};
  };
  send(Json::array({axis("x", place(point.x, size.width)), axis("y", place(point.y, size.height))}));
  rest(kPress);
}

void MachineScreen::hold(const std::string& button, bool down) {
  send(Json::array({button_event(button, down)}));
  rest(kPress);
}

void MachineScreen::click(const std::string& button, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    hold(button, true);
    hold(button, false);
  }
}

// On its way: what follows a pointer does not follow one that jumps.
void MachineScreen::drag(const engine::ScreenInput& input, ScreenSize size) {
  if (!input.at || !input.to) throw usage_error("to drag takes two points");
  const engine::ScreenPoint from = *input.at, to = *input.to;
  if (to.x >= size.width || to.y >= size.height) move_to(to, size);  // which refuses it
  move_to(from, size);
  hold(input.button, true);
  const auto between = [](std::uint32_t begin, std::uint32_t end, int step) {
    const std::int64_t way = static_cast<std::int64_t>(end) - begin;
    return static_cast<std::uint32_t>(begin + way * step / kDragSteps);
  };
  for (int step = 1; step <= kDragSteps; ++step) {
    move_to({between(from.x, to.x, step), between(from.y, to.y, step)}, size);
    rest(kStep);
  }
  hold(input.button, false);
}

void MachineScreen::give(const engine::ScreenInput& input) {
  using Kind = engine::ScreenInput::Kind;
  if (input.count == 0 || input.count > kMostTimes)
    throw usage_error("from 1 to " + std::to_string(kMostTimes) + " times, not " + std::to_string(input.count));
  if (input.kind == Kind::Type) {
    for (const KeyChord& chord : keys_of_text(input.text)) press(chord);
    return;
  }
  if (input.kind == Kind::Key) return press(keys_of_name(input.text));
  check_button(input.button);
  const ScreenSize size = size_of_png(screenshot());
  if (input.kind == Kind::Drag) return drag(input, size);
  if (input.at) move_to(*input.at, size);
  if (input.kind == Kind::Click) click(input.button, input.count);
  if (input.kind == Kind::Scroll) click(input.up ? "wheel-up" : "wheel-down", input.count);
}

void press_power_button(const fs::path& directory) {
  Qmp monitor(connect_to_vmm(directory / kMachineDirectory / "control.sock", kPatience), kPatience);
  monitor.execute("system_powerdown", kPatience);
}

}  // namespace dsec::runners
