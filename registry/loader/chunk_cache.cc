#include "registry/loader/chunk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMapSuffix = ".map";
// After the disk was full nothing is written for so long: each attempt costs, and somebody may need what is left.
constexpr std::chrono::seconds kFullFor{5};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool pread_whole(int fd, std::span<std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool pwrite_whole(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return true;
}

std::uint64_t allocated(const fs::path& file) {
  struct stat status;
  return ::lstat(file.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

fs::path map_of(fs::path data) { return data += kMapSuffix; }

}  // namespace

void let_go_of(int file, std::uint64_t offset, std::uint64_t size) noexcept {
  const auto let_go = [&](std::uint64_t from, std::uint64_t to) {
    if (from < to) ::posix_fadvise(file, static_cast<off_t>(from), static_cast<off_t>(to - from), POSIX_FADV_DONTNEED);
  };
  let_go(offset, offset + size);
  // What the kernel has read ahead lies in folios of up to so many bytes, of which it lets go as a whole or not at all.
  // Those behind a reader go a little later: others may be at what lies between.
  constexpr std::uint64_t kLargestFolio = 2 << 20, kBehind = 1 << 20;
  const std::uint64_t to = offset - std::min(offset, kBehind);
  let_go(to - std::min(to, 2 * kLargestFolio), to);
}

CachedBlob::CachedBlob(ChunkCache& cache, const ServedName& blob, const ChunkDigests& digests)
    : cache_(cache),
      digests_(digests),
      data_path_(cache.directory_ / blob.str()),
      map_path_(map_of(data_path_)),
      map_(digests.blob_size(), digests.chunk_size(), boot_id()),
      checked_(digests.count()),
      read_lately_(digests.count()) {
  try {
    open_files();
  } catch (const Error&) {
    data_.reset();
    map_ = ChunkMap(digests.blob_size(), digests.chunk_size(), boot_id());
  }
}

CachedBlob::~CachedBlob() = default;

void CachedBlob::open_files() {
  data_ = open_file(data_path_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  map_file_ = open_file(map_path_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  struct stat status;
  if (::fstat(data_.get(), &status) != 0) throw system_error("stat a cache file");
  const std::uint64_t most = map_.file_size();
  std::optional<ChunkMap> known;
  if (static_cast<std::uint64_t>(status.st_size) == digests_.blob_size() && ::fstat(map_file_.get(), &status) == 0 &&
      static_cast<std::uint64_t>(status.st_size) == most)
    known = ChunkMap::parse(read_all(map_file_.get(), most), digests_.blob_size());
  if (!known || known->chunk_size() != digests_.chunk_size()) return start_anew();
  map_ = std::move(*known);
  const bool same_boot = map_.boot_id() == boot_id();
  for (std::uint64_t chunk = 0; same_boot && chunk < map_.chunks(); ++chunk) checked_[chunk] = map_.has(chunk);
  // So that its age can be told.
  ::futimens(map_file_.get(), nullptr);
}

void CachedBlob::start_anew() {
  cache_.bytes_ -= std::min(cache_.bytes_.load(), allocated(data_path_));
  if (::ftruncate(map_file_.get(), 0) != 0 || ::ftruncate(data_.get(), 0) != 0 ||
      ::ftruncate(data_.get(), static_cast<off_t>(digests_.blob_size())) != 0)
    throw system_error("empty a cache file");
  const std::string bytes = map_.bytes();
  if (!pwrite_whole(map_file_.get(), std::as_bytes(std::span(bytes)), 0)) throw system_error("write a cache map");
}

bool CachedBlob::has(std::uint64_t chunk) {
  const std::lock_guard lock(mutex_);
  return map_.has(chunk);
}

// Of a chunk that another boot wrote.
bool CachedBlob::check_old(std::uint64_t chunk) {
  std::vector<std::byte> bytes(digests_.size_of(chunk));
  const bool good = pread_whole(data_.get(), bytes, chunk * digests_.chunk_size()) && digests_.fits(chunk, bytes);
  const std::lock_guard lock(mutex_);
  checked_[chunk] = good;
  if (!good) {
    // Should the bit stay in the file: it is still one of another boot, so that nobody believes it unread.
    map_.set(chunk, false);
    store_bit(chunk);
  }
  trust_when_checked();
  return good;
}

// Under mutex_. When this boot has seen all that is here, it has not to be hashed again in this boot.
void CachedBlob::trust_when_checked() {
  if (map_.boot_id() == boot_id()) return;
  for (std::uint64_t chunk = 0; chunk < map_.chunks(); ++chunk)
    if (map_.has(chunk) && !checked_[chunk]) return;
  map_.set_boot_id(boot_id());
  const std::string all = map_.bytes();
  const auto bytes = std::as_bytes(std::span(all));
  const std::uint64_t bits = ChunkMap::byte_offset(0);
  // Each bit must be right before the file says that all are of this boot.
  if (pwrite_whole(map_file_.get(), bytes.subspan(bits), bits)) pwrite_whole(map_file_.get(), bytes.first(bits), 0);
}

// Under mutex_. False when the file cannot be changed: then the chunk has to stay, since the next server believes the
// file.
bool CachedBlob::forget(std::uint64_t chunk) {
  map_.set(chunk, false);
  if (!store_bit(chunk)) {
    map_.set(chunk, true);
    return false;
  }
  checked_[chunk] = false;
  return true;
}

// Under mutex_. All eight of its byte.
bool CachedBlob::store_bit(std::uint64_t chunk) {
  const auto byte = static_cast<std::byte>(map_.byte_of(chunk));
  return pwrite_whole(map_file_.get(), {&byte, 1}, ChunkMap::byte_offset(chunk));
}

bool CachedBlob::read(std::uint64_t offset, std::span<std::byte> bytes) {
  if (bytes.empty()) return true;
  const std::shared_lock no_holes(holes_);
  if (!data_) return false;
  const std::uint64_t first = offset / digests_.chunk_size(),
                      last = (offset + bytes.size() - 1) / digests_.chunk_size();
  std::vector<std::uint64_t> unchecked;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t chunk = first; chunk <= last; ++chunk) {
      if (!map_.has(chunk)) return false;
      if (!checked_[chunk]) unchecked.push_back(chunk);
      read_lately_[chunk] = true;
    }
  }
  for (const std::uint64_t chunk : unchecked)
    if (!check_old(chunk)) return false;
  if (!pread_whole(data_.get(), bytes, offset)) return false;
  let_go_of(data_.get(), offset, bytes.size());
  return true;
}

bool CachedBlob::write(std::uint64_t chunk, std::span<const std::byte> bytes, Room room) {
  if (!data_ || !cache_.make_room(bytes.size(), room)) return false;
  const std::lock_guard lock(mutex_);
  if (released_ || map_.has(chunk)) return true;
  if (!pwrite_whole(data_.get(), bytes, chunk * digests_.chunk_size())) {
    cache_.full();
    return false;
  }
  cache_.bytes_ += bytes.size();
  map_.set(chunk, true);
  checked_[chunk] = read_lately_[chunk] = true;
  store_bit(chunk);
  trust_when_checked();
  return true;
}

std::uint64_t CachedBlob::present_bytes() {
  const std::lock_guard lock(mutex_);
  return map_.present_bytes();
}

bool CachedBlob::complete() {
  const std::lock_guard lock(mutex_);
  return map_.present() == map_.chunks() && data_;
}

// Whoever hashes the whole would take what a power cut left of a chunk for what was published.
void CachedBlob::check_all_old() {
  const std::shared_lock no_holes(holes_);
  for (std::uint64_t chunk = 0; data_ && chunk < map_.chunks(); ++chunk) {
    {
      const std::lock_guard lock(mutex_);
      if (!map_.has(chunk) || checked_[chunk]) continue;
    }
    check_old(chunk);
  }
}

bool CachedBlob::pin() {
  check_all_old();
  const std::lock_guard lock(mutex_);
  pinned_ = data_ && map_.present() == map_.chunks();
  return pinned_;
}

void CachedBlob::unpin() {
  const std::lock_guard lock(mutex_);
  pinned_ = false;
}

void CachedBlob::release() {
  const std::lock_guard lock(mutex_);
  released_ = true;
  cache_.bytes_ -= std::min(cache_.bytes_.load(), digests_.blob_size());
  ::unlink(map_path_.c_str());
}

// Twice around at most: the first time only takes marks away.
std::uint64_t CachedBlob::drop_unread(std::uint64_t wanted) {
  std::uint64_t freed = 0;
  const std::unique_lock nobody_reads(holes_);
  const std::lock_guard lock(mutex_);
  if (pinned_ || released_ || !data_) return 0;
  for (std::uint64_t step = 0; step < 2 * map_.chunks() && freed < wanted; ++step) {
    const std::uint64_t chunk = hand_++ % map_.chunks();
    if (!map_.has(chunk)) continue;
    if (read_lately_[chunk]) {
      read_lately_[chunk] = false;
      continue;
    }
    // First the bit, then the chunk.
    if (!forget(chunk)) break;
    if (::fallocate(data_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(chunk * digests_.chunk_size()),
                    static_cast<off_t>(digests_.size_of(chunk))) != 0)
      break;
    freed += digests_.size_of(chunk);
  }
  return freed;
}

ChunkCache::ChunkCache(fs::path directory, std::uint64_t limit) : directory_(std::move(directory)), limit_(limit) {
  std::error_code ignored;
  try {
    make_directories(directory_, 0700);
  } catch (const Error&) {
    return;
  }
  for (const auto& entry : fs::directory_iterator(directory_, ignored)) bytes_ += allocated(entry.path());
}

std::shared_ptr<CachedBlob> ChunkCache::open(const ServedName& blob, const ChunkDigests& digests) {
  const std::lock_guard lock(mutex_);
  open_.remove_if([](const auto& each) { return each.expired(); });
  std::shared_ptr<CachedBlob> opened(new CachedBlob(*this, blob, digests));
  open_.push_back(opened);
  return opened;
}

void ChunkCache::full() { full_until_ = now_ns() + std::chrono::nanoseconds(kFullFor).count(); }

// Under mutex_. Bytes freed.
std::uint64_t ChunkCache::drop_oldest_unused() {
  std::vector<fs::path> in_use;
  for (const auto& each : open_)
    if (const auto blob = each.lock()) in_use.push_back(blob->data_path_);
  fs::path oldest;
  fs::file_time_type age{};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory_, ignored)) {
    const fs::path& path = entry.path();
    if (path.extension() == kMapSuffix || std::find(in_use.begin(), in_use.end(), path) != in_use.end()) continue;
    std::error_code none;
    const auto time = fs::last_write_time(map_of(path), none);
    const auto when = none ? fs::file_time_type::min() : time;
    if (oldest.empty() || when < age) oldest = path, age = when;
  }
  if (oldest.empty()) return 0;
  const std::uint64_t freed = allocated(oldest);
  ::unlink(map_of(oldest).c_str());
  ::unlink(oldest.c_str());
  return std::max<std::uint64_t>(freed, 1);
}

bool ChunkCache::make_room(std::uint64_t bytes, Room room) {
  if (full_until_.load() > now_ns()) return false;
  if (bytes_.load() + bytes <= limit_) return true;
  if (bytes > limit_) return false;
  const std::lock_guard lock(mutex_);
  // Some more than is needed, so that not every chunk has to look for room.
  const std::uint64_t goal = limit_ - std::min(limit_, std::max(bytes, limit_ / 16));
  while (bytes_.load() > goal) {
    const std::uint64_t freed = drop_oldest_unused();
    if (freed == 0) break;
    bytes_ -= std::min(bytes_.load(), freed);
  }
  for (const auto& each : open_) {
    const std::uint64_t used = bytes_.load();
    if (used <= goal || room == Room::OfUnused) break;
    if (const auto blob = each.lock()) bytes_ -= std::min(bytes_.load(), blob->drop_unread(used - goal));
  }
  return bytes_.load() + bytes <= limit_;
}

}  // namespace dsec::registry
