#include "registry/loader/served_blobs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/iso_time.h"
#include "core/engine/mapped_blob.h"
#include "registry/layout/prefetch_list.h"
#include "registry/store/blob_session.h"

namespace dsec::registry {
namespace {

int read_file_part(int fd, std::uint64_t offset, std::span<std::byte> bytes, std::size_t& filled) {
  while (filled < bytes.size()) {
    const ssize_t got = ::pread(fd, bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return 0;
    filled += static_cast<std::size_t>(got);
  }
  return 0;
}

}  // namespace

/// Counts what comes, whichever server asks for it; and where registries fail, what was pulled meanwhile heals it.
class ServedBlobs::CountedSource : public ChunkSource {
 public:
  CountedSource(ServedBlobs& blobs, ChunkSource& source) : blobs_(blobs), source_(source) {}
  void read(const BlobOrigin& origin, const RemoteBlob& blob, std::uint64_t offset,
            std::span<std::byte> bytes) override {
    try {
      source_.read(origin, blob, offset, bytes);
    } catch (const Error&) {
      if (!read_stored(blob.blob, offset, bytes)) throw;
      return;
    }
    SharedState& state = blobs_.state_;
    if (const auto inode = state.inode_of({blob.blob.digest, blob.chunks})) state.add_fetched(*inode, bytes.size());
  }
  void distrust(const BlobOrigin& origin) override { source_.distrust(origin); }
  std::vector<BlobOrigin> origins(const RemoteBlob& blob) override {
    auto known = blobs_.store_.on_demand(blob.blob.digest, blob.chunks);
    return known ? std::move(known->origins) : blob.origins;
  }

 private:
  // Compared with the chunk digests by who asks, like all that a source gives.
  bool read_stored(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) {
    const UniqueFd file = blobs_.open_stored(blob.digest, blob.size);
    std::size_t filled = 0;
    return file && read_file_part(file.get(), offset, bytes, filled) == 0 && filled == bytes.size();
  }

  ServedBlobs& blobs_;
  ChunkSource& source_;
};

ServedBlobs::ServedBlobs(LocalStore& store, SharedState& state, ChunkSource& source, ChunkCache& cache,
                         LoaderSettings settings, bool fill, std::function<void(const std::string&)> log)
    : store_(store),
      state_(state),
      cache_(cache),
      fill_(fill),
      log_(std::move(log)),
      source_(std::make_unique<CountedSource>(*this, source)) {
  loader_ = std::make_unique<Loader>(*source_, cache, settings, log_, [this](const std::shared_ptr<LoadedBlob>& blob) {
    {
      const std::lock_guard lock(mutex_);
      complete_.push_back(blob);
    }
    adopting_.notify_one();
  });
  adopter_ = std::thread([this] { adopt_loop(); });
}

ServedBlobs::~ServedBlobs() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  adopting_.notify_one();
  adopter_.join();
}

std::optional<std::uint64_t> ServedBlobs::size(const ServedName& blob) {
  const std::optional<OnDemandBlob> known = store_.on_demand(blob.blob, blob.chunks);
  if (!known) return std::nullopt;
  return known->blob.size;
}

std::optional<ServedBlobs::Served> ServedBlobs::known(const ServedName& blob) {
  const std::lock_guard lock(mutex_);
  if (const auto found = blobs_.find(blob); found != blobs_.end()) return found->second;
  const auto closed = closed_.find(blob);
  if (closed == closed_.end()) return std::nullopt;
  const std::shared_ptr<LoadedBlob> left = closed->second.lock();
  closed_.erase(closed);
  if (!left) return std::nullopt;
  blobs_.emplace(blob, left);
  return left;
}

ServedBlobs::Served ServedBlobs::find(const ServedName& blob) {
  if (auto served = known(blob)) return *served;
  // One at a time: the cache of a blob must not be opened twice.
  const std::lock_guard one_at_a_time(opening_);
  if (auto served = known(blob)) return *served;
  Served opened = open(blob);
  const std::lock_guard lock(mutex_);
  return blobs_.emplace(blob, std::move(opened)).first->second;
}

void ServedBlobs::opened(const ServedName& blob) {
  try {
    const Served served = find(blob);
    // One that was left and is taken up again.
    if (const auto* loaded = std::get_if<std::shared_ptr<LoadedBlob>>(&served); loaded && fill_) loader_->fill(*loaded);
  } catch (const Error& error) {
    log_(error.message());
  }
}

void ServedBlobs::closed(const ServedName& blob) {
  const std::lock_guard lock(mutex_);
  std::erase_if(closed_, [](const auto& each) { return each.second.expired(); });
  const auto found = blobs_.find(blob);
  if (found == blobs_.end()) return;
  if (const auto* loaded = std::get_if<std::shared_ptr<LoadedBlob>>(&found->second)) {
    loader_->leave(**loaded);
    closed_[blob] = *loaded;
  }
  blobs_.erase(found);
}

// The file of the store, if it is one to believe: of the right size where that is known, and not damaged.
UniqueFd ServedBlobs::open_stored(const Digest& blob, std::optional<std::uint64_t> size) {
  UniqueFd file(::open(store_.blob_file(blob).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  if (!file || ::fstat(file.get(), &status) != 0 ||
      (size && !engine::fits_blob(static_cast<std::uint64_t>(status.st_size), *size)) ||
      is_damaged(*store_.index().take(), blob))
    return {};
  return file;
}

ServedBlobs::Served ServedBlobs::open(const ServedName& blob) {
  std::optional<OnDemandBlob> known = store_.on_demand(blob.blob, blob.chunks);
  if (UniqueFd file = open_stored(blob.blob, known ? std::optional(known->blob.size) : std::nullopt); file)
    return std::make_shared<UniqueFd>(std::move(file));
  if (!known) throw failure("blob " + blob.blob.str() + " is not loaded on demand");
  std::string digests = read_file(store_.blob_path(known->chunks), kLargestChunkDigests);
  const std::shared_ptr<LoadedBlob> loaded = loader_->open(
      {known->blob, known->chunks, std::move(known->layer), std::move(known->origins)}, std::move(digests));
  const auto listed = store_.prefetch_list(blob.blob, blob.chunks, chunks_of(loaded->size(), kChunkSize));
  if (!listed.empty()) loader_->prefetch(loaded, listed);
  if (fill_) loader_->fill(loaded);
  return loaded;
}

void ServedBlobs::read(const ServedName& blob, std::uint64_t offset, std::size_t size,
                       std::function<void(int error, std::span<const std::byte> bytes)> done) {
  Served served;
  try {
    served = find(blob);
  } catch (const Error& error) {
    log_(error.message());
    return done(EIO, {});
  }
  if (const auto* loaded = std::get_if<std::shared_ptr<LoadedBlob>>(&served))
    return loader_->read(*loaded, offset, size, std::move(done));
  thread_local std::vector<std::byte> buffer;
  buffer.resize(size);
  std::size_t filled = 0;
  const int file = std::get<Local>(served)->get(), error = read_file_part(file, offset, buffer, filled);
  let_go_of(file, offset, filled);
  done(error, std::span<const std::byte>(buffer).subspan(0, filled));
}

void ServedBlobs::adopt_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    adopting_.wait(lock, [&] { return stop_ || !complete_.empty(); });
    if (stop_) return;
    const std::shared_ptr<LoadedBlob> blob = std::move(complete_.front());
    complete_.pop_front();
    adopting_now_ = true;
    lock.unlock();
    try {
      adopt(blob);
    } catch (const Error& error) {
      // It is served from the cache as before.
      log_(error.message());
    }
    lock.lock();
    adopting_now_ = false;
  }
}

// Each chunk has been verified, but nothing has said so far that together they are the blob.
void ServedBlobs::adopt(const std::shared_ptr<LoadedBlob>& complete) {
  LoadedBlob& blob = *complete;
  const Blob& what = blob.remote().blob;
  // Some were dropped meanwhile, or the last boot ended before they had been written.
  if (!blob.cache().pin()) return loader_->tell_again(complete);
  try {
    const std::filesystem::path& file = blob.cache().file();
    if (const Digest found = digest_of_file(file.native()); found != what.digest)
      throw failure("the chunks of blob " + what.digest.str() + " of layer " + blob.remote().layer +
                    " are right, but together they have " + found.str() + ": whoever published it did so wrongly");
    const auto session = store_.begin_session();
    store_.take_file(*session, what, file);
    blob.cache().release();
  } catch (const Error&) {
    blob.cache().unpin();
    throw;
  }
}

bool ServedBlobs::busy() {
  const std::lock_guard lock(mutex_);
  return adopting_now_ || !complete_.empty();
}

Json ServedBlobs::status() {
  Json blobs = Json::array(), problems = Json::array();
  for (const std::uint64_t inode : state_.inodes()) {
    const ServedName name = *state_.blob_of(inode);
    const std::optional<OnDemandBlob> known = store_.on_demand(name.blob, name.chunks);
    if (!known) continue;
    Json row = {{"digest", name.blob.str()},
                {"layer", known->layer},
                {"bytes", known->blob.size},
                {"here", known->blob.size},
                {"fetched", state_.fetched(inode)}};
    const std::lock_guard lock(mutex_);
    const auto served = blobs_.find(name);
    if (served == blobs_.end())
      row["here"] = nullptr;  // not read since this server began
    else if (const auto* loaded = std::get_if<std::shared_ptr<LoadedBlob>>(&served->second))
      row["here"] = (*loaded)->cache().present_bytes();
    blobs.push_back(std::move(row));
  }
  for (const LoaderProblem& problem : loader_->problems())
    problems.push_back({{"what", problem.what}, {"count", problem.count}, {"last", format_iso_time(problem.last)}});
  return {{"blobs", std::move(blobs)},
          {"problems", std::move(problems)},
          {"cache_bytes", cache_.bytes()},
          {"open_files", state_.handles()}};
}

Json ServedBlobs::record() {
  Json blobs = Json::array();
  std::size_t left = kMostPrefetchRuns;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, served] : blobs_) {
    const auto* loaded = std::get_if<std::shared_ptr<LoadedBlob>>(&served);
    if (!loaded) continue;
    std::vector<ChunkRun> runs = loader_->record(**loaded);
    if (runs.size() > left) runs.resize(left);
    left -= runs.size();
    blobs.push_back({{"digest", name.blob.str()}, {"chunks", to_json(runs)}});
  }
  return {{"blobs", std::move(blobs)}};
}

}  // namespace dsec::registry
