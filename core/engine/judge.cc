#include "core/engine/judge.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

struct Word {
  std::string_view text;  ///< empty: there is none
  std::size_t line = 1, number = 0;
};

class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) {}
  Word next() {
    constexpr std::string_view kSpace = " \t\n\r\v\f";
    while (!rest_.empty() && kSpace.find(rest_.front()) != std::string_view::npos) {
      if (rest_.front() == '\n') ++word_.line, word_.number = 0;
      rest_.remove_prefix(1);
    }
    const std::size_t end = std::min(rest_.find_first_of(kSpace), rest_.size());
    word_.text = rest_.substr(0, end);
    ++word_.number;
    rest_.remove_prefix(end);
    return word_;
  }

 private:
  std::string_view rest_;
  Word word_;
};

std::optional<double> number_of(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool near(std::string_view expected, std::string_view actual, double tolerance) {
  const std::optional<double> wanted = number_of(expected), found = number_of(actual);
  if (!wanted || !found) return false;
  if (std::isnan(*wanted) || std::isnan(*found)) return std::isnan(*wanted) && std::isnan(*found);
  if (std::isinf(*wanted) || std::isinf(*found)) return *wanted == *found;
  const double difference = std::fabs(*wanted - *found);
  return difference <= tolerance || difference <= tolerance * std::fabs(*wanted);
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 60;
  return text.size() <= kMost ? quote(text) : quote(text.substr(0, kMost)) + "...";
}

std::optional<std::string> different_bytes(std::string_view expected, std::string_view actual) {
  if (expected == actual) return std::nullopt;
  const auto at = std::mismatch(expected.begin(), expected.end(), actual.begin(), actual.end());
  const auto line = std::count(expected.begin(), at.first, '\n') + 1;
  const std::string where =
      "line " + std::to_string(line) + ", byte " + std::to_string(at.first - expected.begin() + 1) + ": ";
  if (at.first == expected.end()) return where + "the end was expected";
  if (at.second == actual.end()) return where + "the output ends too early";
  return where + "expected " + quote({&*at.first, 1}) + ", found " + quote({&*at.second, 1});
}

}  // namespace

std::optional<std::string> first_difference(const Comparison& comparison, std::string_view expected,
                                            std::string_view actual) {
  if (comparison.how == Comparison::How::Exact) return different_bytes(expected, actual);
  Words wanted(expected), found(actual);
  for (;;) {
    const Word want = wanted.next(), have = found.next();
    if (want.text.empty() && have.text.empty()) return std::nullopt;
    if (want.text == have.text) continue;
    if (comparison.how == Comparison::How::Floats && near(want.text, have.text, comparison.tolerance)) continue;
    const std::string where = "line " + std::to_string(have.line) + ", word " + std::to_string(have.number) + ": ";
    if (want.text.empty()) return where + "the end was expected, found " + shown(have.text);
    if (have.text.empty()) return where + "expected " + shown(want.text) + ", found the end";
    return where + "expected " + shown(want.text) + ", found " + shown(have.text);
  }
}

}  // namespace dsec::engine
