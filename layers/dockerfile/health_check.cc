#include "layers/dockerfile/health_check.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/json.h"

namespace dsec::layers::dockerfile {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

std::string upper(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

std::int64_t duration_of(const Flag& flag) {
  const std::int64_t value = parse_go_duration(flag.value);
  if (value != 0 && value < kMillisecond) throw usage_error("--" + flag.name + " is at least 1ms, or 0");
  return value;
}

std::int64_t retries_of(const Flag& flag) {
  std::int64_t value = 0;
  const char* const end = flag.value.data() + flag.value.size();
  const auto [at, error] = std::from_chars(flag.value.data(), end, value);
  if (flag.value.empty() || error != std::errc() || at != end || value < 0 || value > 1'000'000)
    throw usage_error("--retries=" + flag.value + " is no number of tries");
  return value;
}

void take_flag(const Flag& flag, HealthCheck& check) {
  if (flag.name == "interval")
    check.interval = duration_of(flag);
  else if (flag.name == "timeout")
    check.timeout = duration_of(flag);
  else if (flag.name == "start-period")
    check.start_period = duration_of(flag);
  else if (flag.name == "start-interval")
    check.start_interval = duration_of(flag);
  else if (flag.name == "retries")
    check.retries = retries_of(flag);
  else
    throw usage_error("the flag --" + flag.name + " is unknown or not supported");
}

}  // namespace

std::int64_t parse_go_duration(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 7> kUnits = {
      {{"ns", 1}, {"us", 1e3}, {"\xC2\xB5s", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}}};
  const auto wrong = [&] { return usage_error(quote(text) + " is no duration like 30s or 1m30s"); };
  if (text == "0") return 0;
  if (text.empty() || text.size() > 40) throw wrong();
  double sum = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find_first_not_of("0123456789."), rest.size());
    double value = 0;
    const auto [at, error] = std::from_chars(rest.data(), rest.data() + end, value);
    if (end == 0 || error != std::errc() || at != rest.data() + end) throw wrong();
    rest.remove_prefix(end);
    const std::string_view unit = rest.substr(0, std::min(rest.find_first_of("0123456789."), rest.size()));
    double factor = 0;
    for (const auto& [name, one] : kUnits)
      if (name == unit) factor = one;
    if (factor == 0) throw wrong();
    rest.remove_prefix(unit.size());
    sum += value * factor;
  }
  if (sum > 9e18) throw wrong();
  return std::llround(sum);
}

std::optional<std::vector<std::string>> json_words(const std::string& text) {
  if (!text.starts_with('[')) return std::nullopt;
  try {
    const Json json = parse_json(text, "instruction");
    std::vector<std::string> words;
    for (const Json& word : json) words.push_back(word.get<std::string>());
    return words;
  } catch (const Error&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;  // not a list of strings: the words of a shell
  }
}

HealthCheck parse_health_check(const Instruction& instruction) {
  const std::string& text = instruction.text;
  const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string kind = upper(std::string_view(text).substr(0, end));
  const std::size_t begin = text.find_first_not_of(" \t", end);
  const std::string rest = begin == std::string::npos ? "" : text.substr(begin);
  HealthCheck check;
  for (const Flag& flag : instruction.flags) take_flag(flag, check);
  if (kind == "NONE") {
    if (!rest.empty() || !instruction.flags.empty()) throw usage_error("NONE takes neither flags nor arguments");
    check.test = {"NONE"};
    return check;
  }
  if (kind != "CMD") throw usage_error("CMD or NONE is expected, not " + quote(text.substr(0, end)));
  if (const auto words = json_words(rest)) {
    check.test = *words;
    check.test.insert(check.test.begin(), "CMD");
  } else if (!rest.empty()) {
    check.test = {"CMD-SHELL", rest};
  }
  if (check.test.size() < 2) throw usage_error("CMD is followed by no command");
  return check;
}

}  // namespace dsec::layers::dockerfile
