#include "runners/vm/full/keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

struct Named {
  std::string_view name, key;
};

// What people call keys that QEMU calls otherwise.
constexpr std::array kOtherNames = {
    Named{"enter", "ret"},         Named{"return", "ret"},    Named{"escape", "esc"},   Named{"space", "spc"},
    Named{"pageup", "pgup"},       Named{"pagedown", "pgdn"}, Named{"del", "delete"},   Named{"ins", "insert"},
    Named{"super", "meta_l"},      Named{"win", "meta_l"},    Named{"meta", "meta_l"},  Named{"capslock", "caps_lock"},
    Named{"printscreen", "print"}, Named{"altgr", "alt_r"},   Named{"control", "ctrl"},
};
constexpr std::array<std::string_view, 25> kNames = {
    "ret",   "esc",   "spc",  "pgup",  "pgdn",  "delete", "insert",    "meta_l", "caps_lock",
    "print", "alt_r", "ctrl", "alt",   "shift", "tab",    "backspace", "home",   "end",
    "up",    "down",  "left", "right", "menu",  "pause",  "meta_r"};

struct Sign {
  char plain, shifted;
  std::string_view key;
};
constexpr std::array kSigns = {
    Sign{'1', '!', "1"},
    Sign{'2', '@', "2"},
    Sign{'3', '#', "3"},
    Sign{'4', '$', "4"},
    Sign{'5', '%', "5"},
    Sign{'6', '^', "6"},
    Sign{'7', '&', "7"},
    Sign{'8', '*', "8"},
    Sign{'9', '(', "9"},
    Sign{'0', ')', "0"},
    Sign{'-', '_', "minus"},
    Sign{'=', '+', "equal"},
    Sign{'[', '{', "bracket_left"},
    Sign{']', '}', "bracket_right"},
    Sign{';', ':', "semicolon"},
    Sign{'\'', '"', "apostrophe"},
    Sign{'`', '~', "grave_accent"},
    Sign{'\\', '|', "backslash"},
    Sign{',', '<', "comma"},
    Sign{'.', '>', "dot"},
    Sign{'/', '?', "slash"},
};

std::optional<KeyChord> keys_of(char c) {
  if (c >= 'a' && c <= 'z') return KeyChord{std::string(1, c)};
  if (c >= 'A' && c <= 'Z') return KeyChord{"shift", std::string(1, static_cast<char>(c - 'A' + 'a'))};
  if (c == ' ') return KeyChord{"spc"};
  if (c == '\n') return KeyChord{"ret"};
  if (c == '\t') return KeyChord{"tab"};
  for (const Sign& sign : kSigns) {
    if (c == sign.plain) return KeyChord{std::string(sign.key)};
    if (c == sign.shifted) return KeyChord{"shift", std::string(sign.key)};
  }
  return std::nullopt;
}

bool is_function_key(std::string_view name) {
  if (name.size() < 2 || name.size() > 3 || name[0] != 'f' || name[1] == '0') return false;
  if (!std::all_of(name.begin() + 1, name.end(), [](char c) { return c >= '0' && c <= '9'; })) return false;
  return name.size() == 2 || (name[1] == '1' && name[2] <= '2');
}

void append_key(KeyChord& chord, std::string_view name) {
  if (name.size() == 1) {
    const std::optional<KeyChord> keys = keys_of(name[0]);
    if (keys) return static_cast<void>(chord.insert(chord.end(), keys->begin(), keys->end()));
  }
  std::string small(name);
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const Named& other : kOtherNames)
    if (small == other.name) small = other.key;
  if (std::find(kNames.begin(), kNames.end(), small) == kNames.end() && !is_function_key(small))
    throw usage_error(quote(name) + " is no key")
        .hint(
            "a letter, digit or sign, F1 to F12, enter, esc, tab, backspace, delete, home, end, pageup, pagedown, "
            "up, down, left, right, and with them ctrl, alt, shift or super: ctrl+alt+t");
  chord.push_back(std::move(small));
}

}  // namespace

std::vector<KeyChord> keys_of_text(std::string_view text) {
  std::vector<KeyChord> chords;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::optional<KeyChord> keys = keys_of(text[i]);
    if (!keys)
      throw usage_error("a keyboard of the USA has no key for byte " + std::to_string(i + 1) + " of the text")
          .hint("letters, digits and signs of ASCII, new lines and tabs can be typed");
    chords.push_back(*std::move(keys));
  }
  return chords;
}

KeyChord keys_of_name(std::string_view name) {
  KeyChord chord;
  std::string_view rest = name;
  for (;;) {
    // "ctrl++" has a plus at its end.
    const std::size_t plus = rest.size() > 1 ? rest.find('+', 1) : std::string_view::npos;
    append_key(chord, rest.substr(0, plus));
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  for (std::size_t i = 0; i < chord.size(); ++i)
    if (std::count(chord.begin(), chord.end(), chord[i]) > 1) throw usage_error(quote(name) + " has a key twice");
  return chord;
}

}  // namespace dsec::runners
