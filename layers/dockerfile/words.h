#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::layers::dockerfile {

/// The value of a variable; empty when it has none.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

struct Expansion {
  const Lookup& lookup;
  char escape = '\\';
  /// Quotes are ordinary characters, as in a here-document.
  bool keep_quotes = false;
};

/// The longest text that variables may make: what the kernel takes as one argument.
constexpr std::size_t kLongestText = 128 << 10;

/// Replaces `$x`, `${x}`, `${x:-w}`, `${x-w}`, `${x:+w}`, `${x+w}`, `${x:?w}`, `${x?w}`, `${x#p}`, `${x##p}`, `${x%p}`,
/// `${x%%p}`, `${x/p/w}` and `${x//p/w}`, removes quotes and escapes, and leaves `'…'` as it stands. Throws Error
/// (Usage) for what is not finished, for `:?` without a value, and for a result longer than kLongestText.
std::string expand(std::string_view text, const Expansion& expansion);

/// Words between blanks outside of quotes, with their quotes and escapes. Throws Error (Usage) for an open quote.
std::vector<std::string> split_words(std::string_view text, char escape);
/// Words between blanks; quotes mean nothing.
std::vector<std::string> split_fields(std::string_view text);

}  // namespace dsec::layers::dockerfile
