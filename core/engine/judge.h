#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsec::engine {

/// How a judge compares what a program wrote with what is expected.
struct Comparison {
  enum class How {
    Exact,   ///< byte by byte
    Tokens,  ///< the words between white space
    Floats,  ///< the same, and two words that are numbers may differ by `tolerance`
  };
  How how = How::Tokens;
  double tolerance = 1e-6;  ///< absolute, or relative to what is expected: one of them is enough
};

/// Where `actual` differs first, as one line ("line 3, word 2: expected '7', found '8'"); empty when it does not.
std::optional<std::string> first_difference(const Comparison& comparison, std::string_view expected,
                                            std::string_view actual);

}  // namespace dsec::engine
