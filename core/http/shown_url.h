#pragma once

#include <string>
#include <string_view>

namespace dsec::http {

/// What somebody gave as a URL, for messages: without what may open a door, which are a user's name and password, and
/// all behind a '?'. Of any text.
std::string shown_url(std::string_view text);

}  // namespace dsec::http
