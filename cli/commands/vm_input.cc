#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

using engine::ScreenInput;
using engine::ScreenPoint;

struct Options {
  std::string sandbox, op_id, text, at, to, button = "left", direction;
  std::optional<std::uint64_t> count;
};

// "120,80"
ScreenPoint parse_point(const std::string& text) {
  ScreenPoint point;
  const std::size_t comma = text.find(',');
  const auto number = [](std::string_view digits, std::uint32_t& value) {
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return fault == std::errc() && end == digits.data() + digits.size();
  };
  if (comma == std::string::npos || !number(std::string_view(text).substr(0, comma), point.x) ||
      !number(std::string_view(text).substr(comma + 1), point.y))
    throw usage_error(quote(text) + " is no point of a screen").hint("X,Y: pixels from the upper left corner");
  return point;
}

std::uint32_t times(const Options& options, std::uint32_t otherwise) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(options.count.value_or(otherwise), UINT32_MAX));
}

void give(const Options& options, const ScreenInput& input, Invocation& call) {
  call.wiring().engine().screen_input(options.sandbox, input, operation_context(options.op_id));
}

Command& declare(Command& vm, const char* name, const char* summary, Options& options) {
  Command& verb = vm.verb(name, summary);
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options.sandbox, "Id, unique beginning of an id, or name");
  return verb;
}

void declare_button(Command& verb, Options& options) {
  verb.choice("--button", options.button, {"left", "middle", "right"}, "Of the mouse (default: left)");
}

}  // namespace

void add_vm_type(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = declare(vm, "type", "Type a text on the keyboard of a fullvm", *options);
  verb.positional("TEXT", options->text, "ASCII; a new line is Enter");
  declare_op_id(verb, options->op_id);
  verb.note(
      "Keys are those of a keyboard of the USA, and what they write is up to the layout that the system has. Some ten "
      "characters a second are typed.");
  verb.example("dsec vm type desktop \"$(printf 'root\\n')\"");
  verb.runs([options](Invocation& call) {
    give(*options, {.kind = ScreenInput::Kind::Type, .text = options->text, .at = {}, .to = {}}, call);
  });
}

void add_vm_key(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = declare(vm, "key", "Press keys of a fullvm together", *options);
  verb.positional("KEYS", options->text, "A key, or several with + in between: ctrl+alt+f2");
  declare_op_id(verb, options->op_id);
  verb.note(
      "Letters, digits and signs, f1 to f12, enter, esc, tab, backspace, delete, insert, home, end, pageup, pagedown, "
      "up, down, left, right, space, menu, print, pause, capslock; with them ctrl, alt, altgr, shift, super.");
  verb.example("dsec vm key desktop ctrl+alt+f2");
  verb.runs([options](Invocation& call) {
    give(*options, {.kind = ScreenInput::Kind::Key, .text = options->text, .at = {}, .to = {}}, call);
  });
}

void add_vm_move(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = declare(vm, "move", "Move the pointer of a fullvm", *options);
  verb.positional("POINT", options->at, "X,Y: pixels from the upper left corner of the screen");
  declare_op_id(verb, options->op_id);
  verb.example("dsec vm move desktop 120,80");
  verb.runs([options](Invocation& call) {
    give(*options, {.kind = ScreenInput::Kind::Move, .text = "", .at = parse_point(options->at), .to = {}}, call);
  });
}

void add_vm_click(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = declare(vm, "click", "Click on the screen of a fullvm", *options);
  verb.positional("POINT", options->at, "X,Y: pixels from the upper left corner of the screen");
  declare_button(verb, *options);
  verb.number("--count", options->count, "2: a double click (default: 1)");
  declare_op_id(verb, options->op_id);
  verb.example("dsec vm click desktop 120,80 --button right");
  verb.runs([options](Invocation& call) {
    give(*options,
         {.kind = ScreenInput::Kind::Click,
          .text = "",
          .at = parse_point(options->at),
          .to = {},
          .button = options->button,
          .count = times(*options, 1)},
         call);
  });
}

void add_vm_scroll(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = declare(vm, "scroll", "Turn the wheel of a fullvm's mouse", *options);
  verb.positional("POINT", options->at, "X,Y, where the pointer is meanwhile");
  verb.positional("DIRECTION", options->direction, "up or down");
  verb.number("--count", options->count, "By so many notches (default: 3)");
  declare_op_id(verb, options->op_id);
  verb.example("dsec vm scroll desktop 400,300 down");
  verb.runs([options](Invocation& call) {
    if (options->direction != "up" && options->direction != "down")
      throw usage_error("a wheel turns up or down, not " + quote(options->direction));
    give(*options,
         {.kind = ScreenInput::Kind::Scroll,
          .text = "",
          .at = parse_point(options->at),
          .to = {},
          .button = "left",
          .count = times(*options, 3),
          .up = options->direction == "up"},
         call);
  });
}

void add_vm_drag(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = declare(vm, "drag", "Drag on the screen of a fullvm", *options);
  verb.positional("FROM", options->at, "X,Y, where the button is pressed");
  verb.positional("TO", options->to, "X,Y, where it is let go");
  declare_button(verb, *options);
  declare_op_id(verb, options->op_id);
  verb.example("dsec vm drag desktop 10,10 200,120");
  verb.runs([options](Invocation& call) {
    give(*options,
         {.kind = ScreenInput::Kind::Drag,
          .text = "",
          .at = parse_point(options->at),
          .to = parse_point(options->to),
          .button = options->button},
         call);
  });
}

}  // namespace dsec::cli
