#pragma once

#include <array>
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

#include "registry/loader/background.h"
#include "registry/loader/chunk_cache.h"
#include "registry/loader/chunk_source.h"
#include "registry/loader/read_ahead.h"
#include "registry/loader/read_record.h"

namespace dsec::registry {

struct LoaderSettings {
  std::chrono::milliseconds timeout{30'000};  ///< how long a read waits at most
  int requests = 8;                           ///< to a registry at a time; half as many to one that failed lately
  /// A blob more of which is read than this (0 to 1; 1: never) is fetched as a whole.
  double eager_share = 1;
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
  std::size_t chunk_size() const noexcept { return digests_.chunk_size(); }
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
  ReadRecord record_;
  bool filled_ = false;  ///< all of it is fetched, or was tried to
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

  /// Brings these pieces of kChunkSize, in this order, although nobody asks for them yet; they must be the blob's.
  void prefetch(const std::shared_ptr<LoadedBlob>& blob, const std::vector<ChunkRun>& runs);
  /// Brings all of the blob, after what prefetch() was told of. Readers come first, and what they need is not taken out
  /// of a full cache for it: then it ends, as it does when registries fail.
  void fill(const std::shared_ptr<LoadedBlob>& blob);
  /// Ends both.
  void leave(LoadedBlob& blob);
  /// Which pieces of kChunkSize were read, in the order in which they first were.
  std::vector<ChunkRun> record(const LoadedBlob& blob);

  /// Complete is told of the blob again when all of its chunks are in the cache, which may be at once.
  void tell_again(const std::shared_ptr<LoadedBlob>& blob);

  std::vector<LoaderProblem> problems();

 private:
  using Clock = std::chrono::steady_clock;
  /// Why something is fetched, most urgent first.
  enum class Why { Demand, Ahead, Background };
  struct Job {
    std::shared_ptr<LoadedBlob> blob;
    std::uint64_t first, count;
    Why why = Why::Demand;
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
  std::optional<Job> next_in_background();
  int& running(Why why) { return running_[static_cast<std::size_t>(why)]; }
  void begin(Job& job);
  std::string first_to_ask(const LoadedBlob& blob);
  bool may_ask(const std::string& registry);
  void fetch(const Job& job);
  bool is_wanted(const Job& job);
  void deliver(const Job& job, std::span<const std::byte> bytes, int error, bool kept);
  void want(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last,
            const std::shared_ptr<LoadedBlob::Waiter>& waiter);
  void note_read(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last,
                 ReadAhead::Read read);
  void read_ahead(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last,
                  ReadAhead::Read read);
  bool copy_recent(const LoadedBlob& blob, std::uint64_t chunk, LoadedBlob::Waiter& waiter);
  void abandon(LoadedBlob& blob, const LoadedBlob::Waiter& waiter, Clock::time_point now);
  void tell(const Error& error);
  void begin_to_fill(const std::shared_ptr<LoadedBlob>& blob);
  void give_up(const LoadedBlob& blob);
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
  std::array<int, 3> running_{};      ///< by why
  std::map<std::string, int> asked_;  ///< those that run, by the registry that is asked first
  std::deque<Job> demand_, ahead_;
  Background background_;
  std::deque<std::shared_ptr<LoadedBlob::Waiter>> waiters_;  ///< by deadline
  std::deque<Recent> recent_;                                ///< what the cache had no room for
  std::size_t recent_bytes_ = 0;
  std::vector<LoaderProblem> problems_;
  std::vector<std::thread> threads_;
};

}  // namespace dsec::registry
