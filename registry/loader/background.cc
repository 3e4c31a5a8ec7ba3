#include "registry/loader/background.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "registry/loader/loader.h"

namespace dsec::registry {
namespace {

// Bytes of one request. What is listed is waited for soon.
constexpr std::uint64_t kMostListed = 1 << 20, kMostFilled = 2 << 20;
// So many bytes of a list are fetched in the order in which they lie in the blob, and what separates them by no more
// than that with them: the order of a list jumps to and fro, and each request costs a round trip.
constexpr std::uint64_t kBatch = 8 << 20, kGap = 128 << 10;

bool comes_before(const ChunkRun& a, const ChunkRun& b) { return a.first < b.first; }

// Under one request, as far as that may be.
std::vector<ChunkRun> joined(std::vector<ChunkRun> runs, std::uint64_t gap) {
  std::sort(runs.begin(), runs.end(), comes_before);
  std::vector<ChunkRun> all;
  for (const ChunkRun& run : runs) {
    if (!all.empty() && run.first <= all.back().first + all.back().count + gap)
      all.back().count = std::max(all.back().count, run.first + run.count - all.back().first);
    else
      all.push_back(run);
  }
  return all;
}

std::vector<ChunkRun> in_batches(const std::vector<ChunkRun>& runs, std::size_t chunk_size) {
  std::vector<ChunkRun> all, batch;
  std::uint64_t bytes = 0;
  const auto end_batch = [&] {
    const std::vector<ChunkRun> whole = joined(std::exchange(batch, {}), kGap / chunk_size);
    all.insert(all.end(), whole.begin(), whole.end());
    bytes = 0;
  };
  for (const ChunkRun& run : runs) {
    batch.push_back(run);
    bytes += run.count * chunk_size;
    if (bytes >= kBatch) end_batch();
  }
  end_batch();
  return all;
}

// The first of the run's chunks that are needed, as many as follow each other; the run loses all up to their end.
std::optional<ChunkRun> take_from(ChunkRun& run, std::uint64_t most,
                                  const std::function<bool(std::uint64_t chunk)>& needed) {
  while (run.count > 0 && !needed(run.first)) ++run.first, --run.count;
  ChunkRun taken{run.first, 0};
  while (run.count > 0 && taken.count < most && needed(run.first)) ++run.first, --run.count, ++taken.count;
  return taken.count > 0 ? std::optional(taken) : std::nullopt;
}

}  // namespace

Background::Entry& Background::entry_of(const std::shared_ptr<LoadedBlob>& blob) {
  for (Entry& entry : entries_)
    if (entry.blob == blob) return entry;
  entries_.push_back({blob});
  return entries_.back();
}

void Background::list(const std::shared_ptr<LoadedBlob>& blob, const std::vector<ChunkRun>& runs) {
  Entry& entry = entry_of(blob);
  const std::vector<ChunkRun> batches = in_batches(runs, blob->chunk_size());
  entry.listed.insert(entry.listed.end(), batches.begin(), batches.end());
}

void Background::fill(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t chunks) {
  entry_of(blob).rest = {0, chunks};
}

void Background::forget(const LoadedBlob& blob) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.blob.get() == &blob; });
}

std::optional<ChunkRun> Background::take(Entry& entry, const Calls& calls) {
  const auto needed = [&](std::uint64_t chunk) { return calls.needed(*entry.blob, chunk); };
  const std::uint64_t chunk_size = entry.blob->chunk_size();
  while (!entry.listed.empty()) {
    if (const auto taken = take_from(entry.listed.front(), kMostListed / chunk_size, needed)) return taken;
    entry.listed.pop_front();
  }
  return take_from(entry.rest, kMostFilled / chunk_size, needed);
}

std::optional<Background::Work> Background::next(const Calls& calls) {
  for (std::size_t left = entries_.size(); left > 0; --left) {
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    if (!calls.may_ask(*entry.blob)) {
      entries_.push_back(std::move(entry));
      continue;
    }
    if (const auto taken = take(entry, calls)) {
      Work work{entry.blob, taken->first, taken->count};
      entries_.push_back(std::move(entry));
      return work;
    }
  }
  return std::nullopt;
}

}  // namespace dsec::registry
