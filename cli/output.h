#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace dsec::cli {

enum class Format { Text, Json };

/// Lines of cells under headings, each column as wide as its widest cell.
class Table {
 public:
  explicit Table(std::vector<std::string> headings) : rows_{std::move(headings)} {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Standard output: what a command was asked for, in the format that was asked for. Throws Error when it cannot be
/// written; a closed pipe ends the process by SIGPIPE as usual.
class Output {
 public:
  explicit Output(Format format) : format_(format) {}

  bool json() const noexcept { return format_ == Format::Json; }
  Format format() const noexcept { return format_; }

  /// One line of text, escaped by nobody: the caller quotes what comes from outside.
  void line(std::string_view text);
  /// Bytes as they are.
  void raw(std::string_view bytes);
  void table(const Table& table) { raw(table.str()); }
  /// The whole result, indented.
  void json(const Json& value);
  /// One of many results: a line each.
  void json_line(const Json& value);

 private:
  Format format_;
};

/// "2026-01-31T12:00:00Z".
std::string iso_time(std::chrono::system_clock::time_point time);
/// "5 minutes ago".
std::string age(std::chrono::system_clock::time_point time);
/// Control characters and bytes that are no UTF-8 become \xNN: for one cell or line.
std::string printable(std::string_view text);

}  // namespace dsec::cli
