#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace dsec {

class Database;

/// A prepared statement; step() until false. Text comes and goes as bytes.
class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  /// Parameters are numbered from 1, in order of the calls.
  Statement& bind(std::string_view text);
  Statement& bind(std::int64_t number);
  Statement& bind_null();
  /// True while there is a row. Throws Error with SQLite's message.
  bool step();
  /// Runs to the end; for statements without rows.
  void run();
  void reset();

  std::string text(int column) const;
  std::int64_t number(int column) const;
  bool is_null(int column) const;

 private:
  friend class Database;
  Statement(sqlite3* database, std::string_view sql);
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int next_parameter_ = 1;
};

/// A SQLite database in WAL mode with foreign keys on; waits up to 60 s for a lock held by another process. One object
/// per thread.
class Database {
 public:
  explicit Database(const std::filesystem::path& file);
  Database(Database&& other) noexcept;
  Database& operator=(Database&&) = delete;
  ~Database();

  Statement prepare(std::string_view sql) { return Statement(handle_, sql); }
  void execute(const std::string& sql);
  std::int64_t changes() const;
  std::int64_t last_row_id() const;

  /// Brings `user_version` to migrations.size(), each step in a transaction of its own under an exclusive lock. A newer
  /// database is refused.
  void migrate(std::span<const char* const> migrations);

 private:
  sqlite3* handle_ = nullptr;
};

/// BEGIN IMMEDIATE … COMMIT; rolled back unless committed.
class Transaction {
 public:
  explicit Transaction(Database& database);
  Transaction(const Transaction&) = delete;
  ~Transaction();
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace dsec
