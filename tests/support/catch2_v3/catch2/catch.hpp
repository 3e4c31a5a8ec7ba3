#pragma once

// Catch2 3 under the names of version 2, in which the tests are written: Debian 12 has 2, newer distributions have 3.
#include <catch2/catch_all.hpp>
#include <cstddef>
#include <string>

namespace Catch {
namespace Matchers {

// Version 3 has a Contains() of its own, for the elements of a range; these are the better match for text.
template <std::size_t N>
StringContainsMatcher Contains(const char (&text)[N]) {
  return ContainsSubstring(text);
}
inline StringContainsMatcher Contains(const std::string& text) { return ContainsSubstring(text); }
inline StringContainsMatcher Contains(std::string&& text) { return ContainsSubstring(text); }

}  // namespace Matchers

using Matchers::Contains;
using Matchers::EndsWith;
using Matchers::Equals;
using Matchers::StartsWith;

}  // namespace Catch
