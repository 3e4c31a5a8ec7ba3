#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/sqlite.h"

namespace dsec::registry {

/// Connections to the index for any number of threads: each use takes one that is free, or opens another. Connections
/// do not survive fork(): a child opens its own.
class DatabasePool {
 public:
  /// Makes and migrates the database.
  explicit DatabasePool(std::filesystem::path file);
  DatabasePool(const DatabasePool&) = delete;

  class Use {
   public:
    ~Use();
    Use(Use&&) noexcept = default;
    Database& operator*() const { return *database_; }
    Database* operator->() const { return database_.get(); }

   private:
    friend class DatabasePool;
    Use(DatabasePool& pool, std::unique_ptr<Database> database) : pool_(&pool), database_(std::move(database)) {}
    DatabasePool* pool_;
    std::unique_ptr<Database> database_;
  };
  Use take();

 private:
  std::unique_ptr<Database> open();

  std::filesystem::path file_;
  std::mutex mutex_;
  pid_t owner_;
  std::vector<std::unique_ptr<Database>> free_;
};

}  // namespace dsec::registry
