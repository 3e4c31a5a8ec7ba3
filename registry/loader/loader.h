#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "registry/loader/chunk_cache.h"
#include "registry/loader/chunk_source.h"
#include "registry/loader/read_ahead.h"

namespace dsec::registry {

struct LoaderSettings {
  std::chrono::milliseconds timeout{30'000};  ///< how long a read waits at most
  int requests = 8;                           ///< at a time; half as many to a registry that failed lately
};

/// What went wrong, for people.
struct LoaderProblem {
  std::string what;
  std::chrono::system_clock::time_point last;
  std::uint64_t count = 1;
};

class Loader;

/// A blob that a Loader serves.
class LoadedBlob {
 public:
  LoadedBlob(RemoteBlob remote, ChunkDigests digests);
  const RemoteBlob& remote() const noexcept { return remote_; }
  std::uint64_t size() const noexcept { return remote_.blob.size; }
  CachedBlob& cache() noexcept { return *cache_; }
  /// Bytes that came from registries.
  std::uint64_t fetched() const noexcept { return fetched_.load(); }

 private:
  friend class Loader;
  struct Waiter;
  struct ChunkState {
    bool started = false;
    std::chrono::steady_clock::time_point since;  ///< of its start
    std::vector<std::shared_ptr<Waiter>> waiters;
  };
  const RemoteBlob remote_;
  const ChunkDigests digests_;
  std::shared_ptr<CachedBlob> cache_;
  std::atomic<std::uint64_t> fetched_{0};
  std::atomic<bool> finished_{false};  ///< told to be complete
  // Of the Loader's mutex:
  std::map<std::uint64_t, ChunkState> coming_;
  ReadAhead ahead_;
};

/// Reads of blobs become requests for chunks: each chunk is asked for once whoever waits for it, neighbours together,
/// at most so many requests at a time, what is read next before it is asked for. No byte is served that was not
/// compared with the digest of its chunk. Thread-safe.
class Loader {
 public:
  /// 0 and the bytes asked for, or an errno; called once, from any thread. The bytes are valid during the call.
  using Done = std::function<void(int error, std::span<const std::byte> bytes)>;
  /// Told of a blob all of whose chunks are in the cache, once.
  using Complete = std::function<void(const std::shared_ptr<LoadedBlob>&)>;

  Loader(ChunkSource& source, ChunkCache& cache, LoaderSettings settings,
         std::function<void(const std::string&)> log = {}, Complete complete = {});
  /// Waits for requests that are under way; what waits is answered with EIO.
  ~Loader();

  /// Throws Error when `raw_digests` are not about the blob.
  std::shared_ptr<LoadedBlob> open(RemoteBlob remote, std::string raw_digests);
  /// Answers at once, or when the bytes have come, or with EIO when they do not come in time.
  void read(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t offset, std::size_t size, Done done);

  /// Complete is told of the blob again when all of its chunks are in the cache, which may be at once.
  void tell_again(const std::shared_ptr<LoadedBlob>& blob);

  std::vector<LoaderProblem> problems();

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    std::shared_ptr<LoadedBlob> blob;
    std::uint64_t first, count;
    std::string asked = {};  ///< the registry that is asked first
  };
  struct Recent {
    std::shared_ptr<const LoadedBlob> blob;
    std::uint64_t chunk;
    std::vector<std::byte> bytes;
  };

  void fetch_loop();
  void timeout_loop();
  std::optional<Job> next_job();
  std::optional<Job> next_of(std::deque<Job>& queue);
  std::string first_to_ask(const LoadedBlob& blob);
  bool may_ask(const std::string& registry);
  void fetch(const Job& job);
  bool is_wanted(const Job& job);
  void deliver(const Job& job, std::span<const std::byte> bytes, int error, bool kept);
  void want(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last,
            const std::shared_ptr<LoadedBlob::Waiter>& waiter);
  void read_ahead(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last);
  bool copy_recent(const LoadedBlob& blob, std::uint64_t chunk, LoadedBlob::Waiter& waiter);
  void abandon(LoadedBlob& blob, const LoadedBlob::Waiter& waiter, Clock::time_point now);
  void tell(const Error& error);
  void check_complete(const std::shared_ptr<LoadedBlob>& blob);

  ChunkSource& source_;
  ChunkCache& cache_;
  const LoaderSettings settings_;
  const std::function<void(const std::string&)> log_;
  const Complete complete_;
  OriginHealth health_;

  std::mutex mutex_;
  std::condition_variable work_, waiting_;
  bool stop_ = false;
  int ahead_running_ = 0;
  std::map<std::string, int> running_;  ///< by the registry that is asked first
  std::deque<Job> demand_, ahead_;
  std::deque<std::shared_ptr<LoadedBlob::Waiter>> waiters_;  ///< by deadline
  std::deque<Recent> recent_;                                ///< what the cache had no room for
  std::vector<LoaderProblem> problems_;
  std::vector<std::thread> threads_;
};

}  // namespace dsec::registry
