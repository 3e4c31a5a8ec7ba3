#pragma once

#include <string>
#include <string_view>

namespace dsec::layers::overlaybd {

/// A UUID as layers name each other: 36 characters in capitals. Empty: none, which is written as all digits 0.
std::string random_uuid();
/// From what a person wrote, in capitals or not; all digits 0 is none. Throws Error (Usage).
std::string parse_uuid(std::string_view text);
/// From the 37 bytes of a header: anything that is no UUID is none, as the project's reader takes it.
std::string stored_uuid(std::string_view bytes);
/// As it stands in a file, without the zero byte.
std::string shown_uuid(std::string_view uuid);

}  // namespace dsec::layers::overlaybd
