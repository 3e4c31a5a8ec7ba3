#include "registry/loader/loader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace dsec::registry {
namespace {

// Bytes of one request: of what somebody waits for, and of what nobody waits for yet.
constexpr std::uint64_t kMostBytes = 1 << 20, kMostBytesAhead = 2 << 20;
// Of chunks that the cache had no room for.
constexpr std::size_t kMostRecentBytes = 16 << 20;
constexpr std::size_t kMostProblems = 32;
// A registry that takes long to answer, or for ever, has others go on.
constexpr int kRegistriesAtOnce = 4;

}  // namespace

/// A read that is not answered yet.
struct LoadedBlob::Waiter {
  std::shared_ptr<LoadedBlob> blob;
  std::uint64_t offset;
  std::vector<std::byte> bytes;
  Loader::Done done;
  std::chrono::steady_clock::time_point deadline;
  // Of the Loader's mutex:
  std::size_t missing = 0;  ///< chunks
  bool answered = false;

  std::uint64_t first() const { return offset / blob->chunk_size(); }
  std::uint64_t last() const { return (offset + bytes.size() - 1) / blob->chunk_size(); }
  /// The part of it that lies in a chunk: where in the file, and where in `bytes`.
  std::pair<std::uint64_t, std::span<std::byte>> part(std::uint64_t chunk) {
    const std::uint64_t from = std::max(offset, chunk * blob->chunk_size()),
                        to = std::min(offset + bytes.size(), (chunk + 1) * blob->chunk_size());
    return {from,
            std::span(bytes).subspan(static_cast<std::size_t>(from - offset), static_cast<std::size_t>(to - from))};
  }
  void take(std::uint64_t chunk, std::span<const std::byte> whole) {
    const auto [from, to] = part(chunk);
    std::memcpy(to.data(), whole.data() + (from - chunk * blob->chunk_size()), to.size());
  }
  /// By whoever has set `answered`. Chunks that are still coming may refer to it for long; what it held goes now.
  void answer(int error) {
    const std::vector<std::byte> whole = std::exchange(bytes, {});
    std::exchange(done, {})(error, error == 0 ? std::span(whole) : std::span<const std::byte>());
  }
};

LoadedBlob::LoadedBlob(RemoteBlob remote, ChunkDigests digests)
    : remote_(std::move(remote)),
      digests_(std::move(digests)),
      ahead_(digests_.chunk_size()),
      record_(digests_.count()) {}

Loader::Loader(ChunkSource& source, ChunkCache& cache, LoaderSettings settings,
               std::function<void(const std::string&)> log, Complete complete)
    : source_(source), cache_(cache), settings_(settings), log_(std::move(log)), complete_(std::move(complete)) {
  for (int i = 0; i < settings_.requests * kRegistriesAtOnce; ++i) threads_.emplace_back([this] { fetch_loop(); });
  threads_.emplace_back([this] { timeout_loop(); });
}

Loader::~Loader() {
  std::deque<std::shared_ptr<LoadedBlob::Waiter>> left;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const auto& waiter : waiters_)
      if (!std::exchange(waiter->answered, true)) left.push_back(waiter);
  }
  work_.notify_all();
  waiting_.notify_all();
  for (const auto& waiter : left) waiter->answer(EIO);
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<LoadedBlob> Loader::open(RemoteBlob remote, std::string raw_digests) {
  ChunkDigests digests(std::move(raw_digests), remote.blob.size);
  auto blob = std::make_shared<LoadedBlob>(std::move(remote), std::move(digests));
  blob->cache_ = cache_.open({blob->remote_.blob.digest, blob->remote_.chunks}, blob->digests_);
  check_complete(blob);
  return blob;
}

void Loader::read(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t offset, std::size_t size, Done done) {
  if (offset >= blob->size()) return done(0, {});
  size = static_cast<std::size_t>(std::min<std::uint64_t>(size, blob->size() - offset));
  if (size == 0) return done(0, {});
  const std::uint64_t first = offset / blob->chunk_size(), last = (offset + size - 1) / blob->chunk_size();
  // Kept: getting so much memory anew costs as much as reading it.
  thread_local std::vector<std::byte> buffer;
  if (buffer.size() < size) buffer.resize(size);
  const std::span<std::byte> bytes = std::span(buffer).first(size);
  if (blob->cache().read(offset, bytes)) {
    done(0, bytes);
    const std::lock_guard lock(mutex_);
    return note_read(blob, first, last, ReadAhead::Read::FoundAll);
  }
  auto waiter = std::make_shared<LoadedBlob::Waiter>();
  waiter->blob = blob;
  waiter->offset = offset;
  waiter->bytes.resize(size);
  waiter->done = std::move(done);
  waiter->deadline = Clock::now() + settings_.timeout;
  // What is here already; the rest is found under the lock.
  std::vector<bool> here;
  for (std::uint64_t chunk = first; chunk <= last; ++chunk) {
    const auto [from, to] = waiter->part(chunk);
    here.push_back(blob->cache().read(from, to));
  }
  bool answer = false;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t chunk = first; chunk <= last; ++chunk) {
      if (here[chunk - first] || copy_recent(*blob, chunk, *waiter)) continue;
      // It may have come since it was looked for.
      const auto [from, to] = waiter->part(chunk);
      if (!blob->coming_.contains(chunk) && blob->cache().read(from, to)) continue;
      ++waiter->missing;
      want(blob, chunk, chunk, waiter);
    }
    answer = waiter->missing == 0;
    if (answer)
      waiter->answered = true;
    else
      waiters_.push_back(waiter);
    note_read(blob, first, last, answer ? ReadAhead::Read::FoundAll : ReadAhead::Read::Waited);
  }
  if (answer) return waiter->answer(0);
  work_.notify_all();
  waiting_.notify_one();
}

// Under mutex_. A job of chunks that nobody has asked for so far; `waiter`, if any, waits for them.
void Loader::want(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last,
                  const std::shared_ptr<LoadedBlob::Waiter>& waiter) {
  for (std::uint64_t chunk = first; chunk <= last; ++chunk) {
    LoadedBlob::ChunkState& state = blob->coming_[chunk];
    if (waiter) state.waiters.push_back(waiter);
  }
  if (!waiter) {
    ahead_.push_back({blob, first, last - first + 1, Why::Ahead});
    return;
  }
  // Also for what is to be read ahead already: who comes first takes the chunk.
  if (!demand_.empty() && demand_.back().blob == blob && demand_.back().first + demand_.back().count == first &&
      demand_.back().count < kMostBytes / blob->chunk_size())
    demand_.back().count += last - first + 1;
  else
    demand_.push_back({blob, first, last - first + 1});
}

// Under mutex_.
void Loader::note_read(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last,
                       ReadAhead::Read read) {
  blob->record_.note(first, last);
  const auto share = static_cast<double>(blob->record_.count()) / static_cast<double>(blob->digests_.count());
  if (share > settings_.eager_share) begin_to_fill(blob);
  read_ahead(blob, first, last, read);
}

// Under mutex_.
void Loader::read_ahead(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t first, std::uint64_t last,
                        ReadAhead::Read read) {
  auto more = blob->ahead_.after(first, last, read);
  if (!more) return;
  std::uint64_t chunk = more->first;
  const std::uint64_t end = std::min(more->first + more->second, blob->digests_.count());
  const auto needed = [&](std::uint64_t c) { return !blob->coming_.contains(c) && !blob->cache().has(c); };
  while (chunk < end) {
    if (!needed(chunk)) {
      ++chunk;
      continue;
    }
    std::uint64_t until = chunk + 1;
    while (until < end && until - chunk < kMostBytesAhead / blob->chunk_size() && needed(until)) ++until;
    want(blob, chunk, until - 1, nullptr);
    chunk = until;
  }
  work_.notify_all();
}

// Under mutex_.
bool Loader::copy_recent(const LoadedBlob& blob, std::uint64_t chunk, LoadedBlob::Waiter& waiter) {
  for (const Recent& recent : recent_)
    if (recent.blob.get() == &blob && recent.chunk == chunk) {
      waiter.take(chunk, recent.bytes);
      return true;
    }
  return false;
}

// Of one chunk: all who wait for it have it, or know that it does not come.
void Loader::deliver(const Job& job, std::span<const std::byte> bytes, int error, bool kept) {
  std::vector<std::shared_ptr<LoadedBlob::Waiter>> ready;
  {
    const std::lock_guard lock(mutex_);
    const auto found = job.blob->coming_.find(job.first);
    const bool waited_for = found != job.blob->coming_.end() && !found->second.waiters.empty();
    if (error == 0 && !kept && (waited_for || job.why != Why::Background)) {
      recent_.push_back({job.blob, job.first, {bytes.begin(), bytes.end()}});
      recent_bytes_ += bytes.size();
      for (; recent_bytes_ > kMostRecentBytes; recent_.pop_front()) recent_bytes_ -= recent_.front().bytes.size();
    }
    if (found == job.blob->coming_.end()) return;  // given up meanwhile
    for (const auto& waiter : found->second.waiters) {
      if (waiter->answered) continue;
      if (error == 0) waiter->take(job.first, bytes);
      if (error != 0 || --waiter->missing == 0) {
        waiter->answered = true;
        ready.push_back(waiter);
      }
    }
    job.blob->coming_.erase(found);
    // Not only the first ones: one that waits long keeps none of those behind it.
    if (!ready.empty()) std::erase_if(waiters_, [](const auto& waiter) { return waiter->answered; });
  }
  for (const auto& waiter : ready) waiter->answer(error);
}

void Loader::timeout_loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto now = Clock::now();
    std::vector<std::shared_ptr<LoadedBlob::Waiter>> late;
    while (!waiters_.empty() && (waiters_.front()->answered || waiters_.front()->deadline <= now)) {
      if (!std::exchange(waiters_.front()->answered, true)) {
        abandon(*waiters_.front()->blob, *waiters_.front(), now);
        late.push_back(std::move(waiters_.front()));
      }
      waiters_.pop_front();
    }
    if (!late.empty()) {
      lock.unlock();
      for (const auto& waiter : late) {
        tell(failure("a read of blob " + waiter->blob->remote_.blob.digest.str() + " of layer " +
                     waiter->blob->remote_.layer + " was not answered in time"));
        waiter->answer(EIO);
      }
      lock.lock();
      continue;
    }
    if (waiters_.empty())
      waiting_.wait(lock);
    else
      waiting_.wait_until(lock, waiters_.front()->deadline);
  }
}

// Under mutex_. What takes too long is asked for anew by the next who wants it.
void Loader::abandon(LoadedBlob& blob, const LoadedBlob::Waiter& waiter, Clock::time_point now) {
  for (std::uint64_t chunk = waiter.first(); chunk <= waiter.last(); ++chunk) {
    const auto found = blob.coming_.find(chunk);
    if (found == blob.coming_.end()) continue;
    const bool waited_for = std::any_of(found->second.waiters.begin(), found->second.waiters.end(),
                                        [](const auto& each) { return !each->answered; });
    const bool late = found->second.started && now - found->second.since >= settings_.timeout;
    if (late) health_.tell(first_to_ask(blob), false);
    if (!waited_for && (!found->second.started || late)) blob.coming_.erase(found);
  }
}

void Loader::tell(const Error& error) {
  const std::string what = error.message();
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    const auto known =
        std::find_if(problems_.begin(), problems_.end(), [&](const LoaderProblem& each) { return each.what == what; });
    first = known == problems_.end();
    if (first) {
      if (problems_.size() == kMostProblems) problems_.erase(problems_.begin());
      problems_.push_back({what, std::chrono::system_clock::now()});
    } else {
      known->last = std::chrono::system_clock::now();
      ++known->count;
    }
  }
  if (log_ && first) log_(what);
}

void Loader::prefetch(const std::shared_ptr<LoadedBlob>& blob, const std::vector<ChunkRun>& runs) {
  {
    const std::lock_guard lock(mutex_);
    background_.list(blob, resized(runs, kChunkSize, blob->chunk_size(), blob->size()));
  }
  work_.notify_all();
}

void Loader::fill(const std::shared_ptr<LoadedBlob>& blob) {
  const std::lock_guard lock(mutex_);
  begin_to_fill(blob);
}

// Under mutex_. Once: what fails or has no room is left to readers from then on.
void Loader::begin_to_fill(const std::shared_ptr<LoadedBlob>& blob) {
  if (std::exchange(blob->filled_, true)) return;
  background_.fill(blob, blob->digests_.count());
  work_.notify_all();
}

void Loader::leave(LoadedBlob& blob) {
  const std::lock_guard lock(mutex_);
  background_.forget(blob);
  blob.filled_ = false;
}

std::vector<ChunkRun> Loader::record(const LoadedBlob& blob) {
  const std::lock_guard lock(mutex_);
  return resized(blob.record_.runs(), blob.chunk_size(), kChunkSize, blob.size());
}

std::vector<LoaderProblem> Loader::problems() {
  const std::lock_guard lock(mutex_);
  return problems_;
}

void Loader::tell_again(const std::shared_ptr<LoadedBlob>& blob) {
  blob->finished_ = false;
  check_complete(blob);
}

void Loader::check_complete(const std::shared_ptr<LoadedBlob>& blob) {
  if (complete_ && blob->cache().complete() && !blob->finished_.exchange(true)) complete_(blob);
}

}  // namespace dsec::registry
