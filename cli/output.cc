#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace {

// Code points, which is what a terminal gives one column for nearly all names.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

}  // namespace

std::string Table::str() const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(i + 1 < row.size() ? widths[i] - width(row[i]) + 2 : 0, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

void Output::raw(std::string_view bytes) {
  attempt("cannot write to standard output", [&] { write_all(STDOUT_FILENO, bytes); });
}

void Output::line(std::string_view text) { raw(std::string(text) + "\n"); }
void Output::json(const Json& value) { line(value.dump(2, ' ', false, kReplace)); }
void Output::json_line(const Json& value) { line(value.dump(-1, ' ', false, kReplace)); }

std::string iso_time(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  char text[32];
  ::gmtime_r(&seconds, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string age(std::chrono::system_clock::time_point time) {
  using namespace std::chrono;
  const auto passed = std::max<std::int64_t>(0, duration_cast<seconds>(system_clock::now() - time).count());
  static constexpr std::pair<std::int64_t, const char*> kUnits[] = {
      {86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}};
  for (const auto& [length, unit] : kUnits) {
    if (passed < length) continue;
    const std::int64_t count = passed / length;
    return std::to_string(count) + " " + unit + (count == 1 ? "" : "s") + " ago";
  }
  return "now";
}

std::string printable(std::string_view text) {
  const std::string quoted = quote(text);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace dsec::cli
