#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>

namespace dsec::engine {

/// Removes directory trees on a thread of its own, so that who removes one sandbox after the other does not wait for
/// the file system; the first is not worth a thread. A tree has a name by then that gc sweeps once this process is
/// gone, so one that could not be removed is no loss. Thread-safe.
class TreeRemover {
 public:
  TreeRemover() = default;
  TreeRemover(const TreeRemover&) = delete;
  /// Waits until everything is removed.
  ~TreeRemover();

  /// When much is waiting already the caller removes this one itself.
  void remove(std::filesystem::path tree);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::filesystem::path> waiting_;
  bool again_ = false;  ///< remove() was called before
  bool stop_ = false;
  std::thread thread_;  ///< begun with the second tree
};

}  // namespace dsec::engine
