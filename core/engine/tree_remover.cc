#include "core/engine/tree_remover.h"

#include <signal.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMostWaiting = 64;

void remove_or_leave(const fs::path& tree) {
  try {
    remove_tree(tree);
  } catch (const Error&) {
    // gc tries again.
  }
}

}  // namespace

TreeRemover::~TreeRemover() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void TreeRemover::remove(fs::path tree) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(again_, true) && waiting_.size() < kMostWaiting) {
      waiting_.push_back(std::exchange(tree, {}));
      if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    }
  }
  if (tree.empty()) {
    wake_.notify_one();
  } else {
    remove_or_leave(tree);
  }
}

void TreeRemover::loop() {
  // Signals are for the threads that know what to do with them.
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const fs::path tree = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    remove_or_leave(tree);
    lock.lock();
  }
}

}  // namespace dsec::engine
