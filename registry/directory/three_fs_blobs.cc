#include "registry/directory/three_fs_blobs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "registry/blob_download.h"
#include "registry/directory/file_copy.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

// Less is read sooner than a ring is made ready.
constexpr std::uint64_t kBulk = 256 << 10;
constexpr std::size_t kMostOpen = 64;
constexpr std::chrono::milliseconds kLookAgain{250};

// Whether an open file has a name still: the client has to ask the cluster.
bool exists(int file) {
  struct statx status;
  return ::statx(file, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_NLINK, &status) == 0 && status.stx_nlink > 0;
}

void start_again(int to) {
  if (::lseek(to, 0, SEEK_SET) != 0 || ::ftruncate(to, 0) != 0) throw system_error("begin a copy again");
}

}  // namespace

ThreeFsBlobs::ThreeFsBlobs(const RegistryRoot& root, std::chrono::milliseconds patience, Progress& progress)
    : root_(root),
      rings_(
          root.address().root, [&progress](const std::string& why) { progress.warn(why); }, patience) {}

std::shared_ptr<const UniqueFd> ThreeFsBlobs::open(const Blob& blob) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(open_.begin(), open_.end(), [&](const auto& entry) { return entry.first == blob.digest; });
    if (found != open_.end()) {
      open_.splice(open_.begin(), open_, found);
      return found->second;
    }
  }
  // Not under the lock: it may have to be waited for.
  auto file =
      std::make_shared<const UniqueFd>(root_.open_file(blob_name(blob.digest), RegistryRoot::Missing::Expected));
  if (!*file) throw missing_blob(blob);
  const std::lock_guard lock(mutex_);
  open_.emplace_front(blob.digest, file);
  if (open_.size() > kMostOpen) open_.pop_back();
  return file;
}

Digest ThreeFsBlobs::copy(const Blob& blob, int to, const std::function<void(std::uint64_t)>& advance) {
  UniqueFd source = root_.open_file(blob_name(blob.digest), RegistryRoot::Missing::Expected);
  if (!source) throw missing_blob(blob);
  try {
    Digest found = copy(blob, source.get(), to, advance);
    if (found == blob.digest || exists(source.get())) return found;
  } catch (const Error&) {
    if (exists(source.get())) throw;
  }
  // Somebody has repaired the registry, and what was opened is what had the name before.
  source = open_new(blob);
  start_again(to);
  return copy(blob, source.get(), to, advance);
}

Digest ThreeFsBlobs::copy(const Blob& blob, int source, int to, const std::function<void(std::uint64_t)>& advance) {
  if (blob.size >= kBulk) {
    ExactCopy copy(to, blob.size, advance);
    std::vector<char> piece;
    const std::uint64_t done = rings_.read(source, 0, blob.size, [&](std::span<const std::byte> shared) {
      const auto* const bytes = reinterpret_cast<const char*>(shared.data());
      piece.assign(bytes, bytes + shared.size());
      copy.add({piece.data(), piece.size()});
    });
    Digest found = copy.rest(source);
    if (done == 0 || found == blob.digest) return found;
    // Bytes that came through FUSE decide whether the blob is damaged.
    rings_.distrust();
    start_again(to);
  }
  return copy_exactly(source, to, blob.size, advance);
}

// The file that has the name once this host has forgotten which one had it before.
UniqueFd ThreeFsBlobs::open_new(const Blob& blob) {
  const auto deadline = std::chrono::steady_clock::now() + kThreeFsKnowsName + std::chrono::seconds(1);
  for (;;) {
    UniqueFd file = root_.open_file(blob_name(blob.digest));
    if (file && exists(file.get())) return file;
    if (std::chrono::steady_clock::now() >= deadline) throw missing_blob(blob);
    std::this_thread::sleep_for(kLookAgain);
  }
}

void ThreeFsBlobs::read(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) {
  const std::shared_ptr<const UniqueFd> source = open(blob);
  attempt("cannot read blob " + blob.digest.str() + " of the registry", [&] {
    auto to = bytes.begin();
    if (bytes.size() >= kBulk)
      rings_.read(source->get(), offset, bytes.size(),
                  [&](std::span<const std::byte> shared) { to = std::copy(shared.begin(), shared.end(), to); });
    const auto done = static_cast<std::size_t>(to - bytes.begin());
    read_exactly(source->get(), offset + done, bytes.subspan(done));
  });
}

void ThreeFsBlobs::distrust() {
  rings_.distrust();
  const std::lock_guard lock(mutex_);
  open_.clear();
}

}  // namespace dsec::registry
