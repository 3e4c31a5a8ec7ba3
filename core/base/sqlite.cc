#include "core/base/sqlite.h"

#include <sqlite3.h>

#include <utility>

#include "core/base/error.h"

namespace dsec {
namespace {

Error database_error(sqlite3* database, std::string attempt) {
  return failure(std::move(attempt) + ": " + sqlite3_errmsg(database));
}

}  // namespace

Statement::Statement(sqlite3* database, std::string_view sql) : database_(database) {
  if (sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr) != SQLITE_OK)
    throw database_error(database, "prepare a database statement");
}

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_),
      statement_(std::exchange(other.statement_, nullptr)),
      next_parameter_(other.next_parameter_) {}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::bind(std::string_view text) {
  // A null data pointer would bind NULL instead of the empty text.
  sqlite3_bind_text(statement_, next_parameter_++, text.data() ? text.data() : "", static_cast<int>(text.size()),
                    SQLITE_TRANSIENT);
  return *this;
}

Statement& Statement::bind(std::int64_t number) {
  sqlite3_bind_int64(statement_, next_parameter_++, number);
  return *this;
}

Statement& Statement::bind_null() {
  sqlite3_bind_null(statement_, next_parameter_++);
  return *this;
}

bool Statement::step() {
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  throw database_error(database_, "run a database statement");
}

void Statement::run() {
  while (step()) {
  }
}

void Statement::reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
  next_parameter_ = 1;
}

std::string Statement::text(int column) const {
  const auto* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes ? std::string(static_cast<const char*>(bytes), static_cast<std::size_t>(size)) : std::string();
}

std::int64_t Statement::number(int column) const { return sqlite3_column_int64(statement_, column); }
bool Statement::is_null(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

Database::Database(const std::filesystem::path& file) {
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(file.c_str(), &handle_, flags, nullptr) != SQLITE_OK) {
    Error error = database_error(handle_, "open the database " + quote(file.native()));
    sqlite3_close(std::exchange(handle_, nullptr));
    throw error;
  }
  try {
    sqlite3_busy_timeout(handle_, 60'000);
    execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA journal_size_limit=0;");
    // The log and its index stay, empty, when the last one closes: making and removing two files costs a short command
    // more than all that it asks the database.
    int keep = 1;
    sqlite3_file_control(handle_, nullptr, SQLITE_FCNTL_PERSIST_WAL, &keep);
  } catch (...) {
    sqlite3_close(std::exchange(handle_, nullptr));
    throw;
  }
}

Database::Database(Database&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Database::~Database() { sqlite3_close(handle_); }

void Database::execute(const std::string& sql) {
  if (sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
    throw database_error(handle_, "run a database statement");
}

std::int64_t Database::changes() const { return sqlite3_changes(handle_); }
std::int64_t Database::last_row_id() const { return sqlite3_last_insert_rowid(handle_); }

void Database::migrate(std::span<const char* const> migrations) {
  const auto version = [&] {
    Statement query = prepare("PRAGMA user_version");
    query.step();
    return static_cast<std::size_t>(query.number(0));
  };
  if (version() == migrations.size()) return;
  Transaction transaction(*this);
  const std::size_t found = version();
  if (found > migrations.size())
    throw failure("the database has format " + std::to_string(found) + ", this dsec knows up to " +
                  std::to_string(migrations.size()))
        .hint("use the dsec release that wrote it, or a newer one");
  for (std::size_t i = found; i < migrations.size(); ++i) execute(migrations[i]);
  execute("PRAGMA user_version=" + std::to_string(migrations.size()));
  transaction.commit();
}

Transaction::Transaction(Database& database) : database_(database) { database_.execute("BEGIN IMMEDIATE"); }

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.execute("ROLLBACK");
  } catch (const Error&) {
    // SQLite has rolled back by itself after the error that brought us here.
  }
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

}  // namespace dsec
