#pragma once

#include <optional>
#include <string>

#include "core/base/files.h"
#include "core/engine/home.h"

namespace dsec::engine {

/// Which sandboxes were made under a name of their caller's: a symbolic link for each, man/dsec-home.5.md. As long as
/// one of these lives, no other process looks at names or takes one.
class CreationKeys {
 public:
  /// Waits for the lock.
  explicit CreationKeys(const Home& home);

  /// The id of the sandbox that was made under `key`. Empty when there is none, also when all of it is gone before its
  /// command was recorded as begun: then nothing was done. Throws Error when its trajectory is damaged.
  std::optional<std::string> find(const std::string& key) const;
  /// Of a sandbox whose directory exists. On the disk when it returns.
  void take(const std::string& key, const std::string& id) const;

 private:
  const Home& home_;
  FileLock lock_;
};

/// Removes the links of which neither sandbox nor trajectory is left.
void sweep_creation_keys(const Home& home);

}  // namespace dsec::engine
