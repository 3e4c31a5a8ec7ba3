#include "registry/store/database_pool.h"

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/store/schema.h"

namespace dsec::registry {

DatabasePool::DatabasePool(std::filesystem::path file) : file_(std::move(file)), owner_(::getpid()) {
  free_.push_back(open());
}

std::unique_ptr<Database> DatabasePool::open() {
  return attempt("cannot open the store's index", [&] {
    // Two processes that switch a new database to WAL at once can fail with "locked" without having waited.
    const FileLock lock(file_.native() + ".lock", FileLock::Mode::Exclusive);
    auto database = std::make_unique<Database>(file_);
    database->migrate(kMigrations);
    return database;
  });
}

DatabasePool::Use DatabasePool::take() {
  {
    const std::lock_guard guard(mutex_);
    if (owner_ != ::getpid()) {
      // Closing an inherited connection would drop the parent's file locks, so it is leaked instead.
      for (auto& inherited : free_) static_cast<void>(inherited.release());
      free_.clear();
      owner_ = ::getpid();
    }
    if (!free_.empty()) {
      Use use(*this, std::move(free_.back()));
      free_.pop_back();
      return use;
    }
  }
  return Use(*this, open());
}

DatabasePool::Use::~Use() {
  if (!database_) return;
  const std::lock_guard guard(pool_->mutex_);
  if (pool_->owner_ == ::getpid())
    pool_->free_.push_back(std::move(database_));
  else
    static_cast<void>(database_.release());
}

}  // namespace dsec::registry
