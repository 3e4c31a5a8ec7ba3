#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/digest.h"
#include "core/base/progress.h"
#include "core/base/unique_fd.h"

namespace dsec::layers {

/// Files that ADD fetches, kept in cache/downloads of the home by their digest, and what each URL had when it was asked
/// last. Thread-safe, and safe for any number of processes.
class Downloads {
 public:
  /// Offline, what is here counts, and nothing is asked.
  Downloads(std::filesystem::path directory, bool offline, Progress& progress);
  ~Downloads();

  /// Digest of what the URL has now. It is fetched unless the server says that it is what was fetched before. Throws
  /// Error (Usage) offline, when it was never fetched.
  Digest look_up(const std::string& url);
  /// The file, opened for reading, which is fetched where it is not here. Throws Error when the URL has something else.
  UniqueFd open(const std::string& url, const Digest& digest);

  /// Removes what was not used for 30 days, or everything.
  static void prune(const std::filesystem::path& directory, bool all);

 private:
  class Fetching;
  std::filesystem::path directory_;
  bool offline_;
  Progress& progress_;
  std::mutex mutex_;
  std::unique_ptr<Fetching> fetching_;
};

/// What a file that is fetched from a URL is called in a directory: the last part of its path; empty when there is
/// none.
std::string file_name_of(const std::string& url);

}  // namespace dsec::layers
