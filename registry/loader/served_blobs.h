#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>

#include "core/base/json.h"
#include "registry/loader/fuse_session.h"
#include "registry/loader/loader.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

/// The blobs of a home behind the filesystem: those of the store from their files, others by a Loader. A blob that has
/// come wholly is hashed and becomes one of the store. Thread-safe.
class ServedBlobs : public FuseFiles {
 public:
  /// `fill`: blobs are fetched as a whole, whatever is read of them.
  ServedBlobs(LocalStore& store, SharedState& state, ChunkSource& source, ChunkCache& cache, LoaderSettings settings,
              bool fill, std::function<void(const std::string&)> log);
  ~ServedBlobs() override;

  std::optional<std::uint64_t> size(const ServedName& blob) override;
  void opened(const ServedName& blob) override;
  void closed(const ServedName& blob) override;
  void read(const ServedName& blob, std::uint64_t offset, std::size_t size,
            std::function<void(int error, std::span<const std::byte> bytes)> done) override;

  /// Whether a blob is being taken into the store.
  bool busy();
  /// What each blob has fetched and has here, and what went wrong.
  Json status();
  /// Which chunks of each blob were read, in the order in which they first were.
  Json record();

 private:
  class CountedSource;
  using Local = std::shared_ptr<UniqueFd>;
  using Served = std::variant<Local, std::shared_ptr<LoadedBlob>>;
  Served find(const ServedName& blob);
  std::optional<Served> known(const ServedName& blob);
  Served open(const ServedName& blob);
  UniqueFd open_stored(const Digest& blob, std::optional<std::uint64_t> size);
  void adopt_loop();
  void adopt(const std::shared_ptr<LoadedBlob>& complete);

  LocalStore& store_;
  SharedState& state_;
  ChunkCache& cache_;
  const bool fill_;
  const std::function<void(const std::string&)> log_;
  const std::unique_ptr<CountedSource> source_;
  std::mutex opening_;
  std::mutex mutex_;  ///< of what follows
  std::map<ServedName, Served> blobs_;
  /// Those that nobody has open, but that are not done with: the cache of a blob must not be opened twice.
  std::map<ServedName, std::weak_ptr<LoadedBlob>> closed_;
  std::deque<std::shared_ptr<LoadedBlob>> complete_;
  std::condition_variable adopting_;
  bool stop_ = false, adopting_now_ = false;
  std::unique_ptr<Loader> loader_;
  std::thread adopter_;
};

}  // namespace dsec::registry
