// What a Loader fetches next, and how.
#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "registry/loader/loader.h"

namespace dsec::registry {
namespace {

// Some are left for who waits; and what nobody waits for shares the way with who does.
constexpr int kKeptForReaders = 2, kMostBesideReaders = 4;

}  // namespace

// Under mutex_.
std::optional<Loader::Job> Loader::next_job() {
  if (auto job = next_of(demand_)) return job;
  if (running(Why::Ahead) + running(Why::Background) >= std::max(1, settings_.requests - kKeptForReaders))
    return std::nullopt;
  if (auto job = next_of(ahead_)) return job;
  if (running(Why::Demand) > 0 && running(Why::Background) >= kMostBesideReaders) return std::nullopt;
  return next_in_background();
}

// Under mutex_.
std::optional<Loader::Job> Loader::next_in_background() {
  const auto work = background_.next({[&](const LoadedBlob& blob) { return may_ask(first_to_ask(blob)); },
                                      [&](const LoadedBlob& blob, std::uint64_t chunk) {
                                        return !blob.coming_.contains(chunk) && !blob.cache_->has(chunk);
                                      }});
  if (!work) return std::nullopt;
  Job job{work->blob, work->first, work->count, Why::Background, first_to_ask(*work->blob)};
  begin(job);
  return job;
}

// Under mutex_.
void Loader::begin(Job& job) {
  for (std::uint64_t chunk = job.first; chunk < job.first + job.count; ++chunk) {
    LoadedBlob::ChunkState& state = job.blob->coming_[chunk];
    state.started = true;
    state.since = Clock::now();
  }
  ++asked_[job.asked];
  ++running(job.why);
}

// Under mutex_. The next run of chunks that nobody fetches yet, of a blob whose registry may be asked.
std::optional<Loader::Job> Loader::next_of(std::deque<Job>& queue) {
  for (auto at = queue.begin(); at != queue.end();) {
    Job& job = *at;
    const auto idle = [&](std::uint64_t chunk) {
      const auto state = job.blob->coming_.find(chunk);
      return state != job.blob->coming_.end() && !state->second.started;
    };
    while (job.count > 0 && !idle(job.first)) ++job.first, --job.count;
    std::uint64_t run = 0;
    while (run < job.count && idle(job.first + run)) ++run;
    if (run == 0) {
      at = queue.erase(at);
      continue;
    }
    const std::string registry = first_to_ask(*job.blob);
    if (!may_ask(registry)) {
      ++at;
      continue;
    }
    Job next{job.blob, job.first, run, job.why, registry};
    job.first += run;
    job.count -= run;
    begin(next);
    return next;
  }
  return std::nullopt;
}

std::string Loader::first_to_ask(const LoadedBlob& blob) {
  const std::vector<BlobOrigin> origins = health_.in_order(blob.remote_.origins);
  return origins.empty() ? "" : origins.front().registry;
}

// Under mutex_. One that stalls must not have everybody wait for it.
bool Loader::may_ask(const std::string& registry) {
  const auto asked = asked_.find(registry);
  const int most = health_.failed_lately(registry) ? std::max(1, settings_.requests / 2) : settings_.requests;
  return asked == asked_.end() || asked->second < most;
}

void Loader::fetch_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<Job> job;
    work_.wait(lock, [&] {
      if (!stop_) job = next_job();
      return stop_ || job.has_value();
    });
    if (stop_) return;
    lock.unlock();
    fetch(*job);
    lock.lock();
    --running(job->why);
    if (--asked_[job->asked] == 0) asked_.erase(job->asked);
    // Also what had to wait for its registry.
    work_.notify_one();
  }
}

void Loader::fetch(const Job& job) {
  LoadedBlob& blob = *job.blob;
  std::uint64_t size = 0;
  for (std::uint64_t chunk = job.first; chunk < job.first + job.count; ++chunk) size += blob.digests_.size_of(chunk);
  std::vector<std::byte> bytes;
  try {
    bytes.resize(size);
    read_chunks(source_, health_, {blob.remote_, blob.digests_, job.first, bytes},
                {[this](const Error& error) { tell(error); }, [&] { return is_wanted(job); }});
    blob.fetched_ += size;
  } catch (const WrongBytes&) {
    if (job.why == Why::Background) give_up(blob);
    // Chunks that were asked for together with a bad one are not bad themselves.
    if (job.count == 1) return deliver(job, {}, EIO, false);
    for (std::uint64_t chunk = job.first; chunk < job.first + job.count; ++chunk) fetch({job.blob, chunk, 1, job.why});
    return;
  } catch (const std::exception&) {
    // Each attempt has been told.
    if (job.why == Why::Background) give_up(blob);
    for (std::uint64_t chunk = job.first; chunk < job.first + job.count; ++chunk)
      deliver({job.blob, chunk, 1, job.why}, {}, EIO, false);
    return;
  }
  const Room room = job.why == Why::Background ? Room::OfUnused : Room::OfAny;
  std::span<const std::byte> rest(bytes);
  for (std::uint64_t chunk = job.first; chunk < job.first + job.count; ++chunk) {
    const auto part = rest.subspan(0, blob.digests_.size_of(chunk));
    rest = rest.subspan(part.size());
    const bool kept = blob.cache().write(chunk, part, room);
    if (!kept && job.why == Why::Background) give_up(blob);
    deliver({job.blob, chunk, 1, job.why}, part, 0, kept);
  }
  check_complete(job.blob);
}

void Loader::give_up(const LoadedBlob& blob) {
  const std::lock_guard lock(mutex_);
  background_.forget(blob);
}

// Whether any of the chunks has not been given up.
bool Loader::is_wanted(const Job& job) {
  const std::lock_guard lock(mutex_);
  const auto next = job.blob->coming_.lower_bound(job.first);
  return !stop_ && next != job.blob->coming_.end() && next->first < job.first + job.count;
}

}  // namespace dsec::registry
