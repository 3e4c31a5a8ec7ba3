#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsec::runners {

/// Names of keys as QEMU has them (QKeyCode), which are down together: pressed in this order, let go in the other.
using KeyChord = std::vector<std::string>;

/// The keys that write `text` on a keyboard of the USA. Throws Error (Usage) naming a character that it has not.
std::vector<KeyChord> keys_of_text(std::string_view text);

/// "ctrl+alt+t", "enter", "F5", "A" (as "shift+a"). Throws Error (Usage) naming what is no key.
KeyChord keys_of_name(std::string_view name);

}  // namespace dsec::runners
