#include "registry/directory/file_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::registry {
namespace {

// 3FS takes 1 MiB a request and is fed best with several in flight; O_DIRECT wants the alignment that mmap gives.
constexpr std::size_t kBufferSize = 4 << 20;

class Buffer {
 public:
  Buffer() : data_(::mmap(nullptr, kBufferSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw system_error("allocate a copy buffer");
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { ::munmap(data_, kBufferSize); }
  char* data() const noexcept { return static_cast<char*>(data_); }

 private:
  void* data_;
};

// Fills the buffer as far as the file goes. Offsets stay multiples of the buffer's size, as O_DIRECT needs.
std::size_t fill(int fd, const Buffer& buffer, std::uint64_t offset) {
  std::size_t filled = 0;
  while (filled < kBufferSize) {
    const ssize_t got = ::pread(fd, buffer.data() + filled, kBufferSize - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    // A direct read that ended off a block border has met the end of the file, and may not start from there.
    if (got < 0 && errno == EINVAL && filled % 512 != 0) break;
    if (got < 0) throw system_error("read");
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

}  // namespace

ExactCopy::ExactCopy(int to, std::uint64_t size, std::function<void(std::uint64_t)> advance)
    : to_(to), size_(size), advance_(std::move(advance)) {}

void ExactCopy::add(std::string_view bytes) {
  if (bytes.size() > size_ - done_) throw failure("it has more than the expected " + std::to_string(size_) + " bytes");
  hash_.update(bytes.data(), bytes.size());
  if (to_ >= 0) write_all(to_, bytes);
  done_ += bytes.size();
  if (advance_) advance_(done_);
}

Digest ExactCopy::rest(int from) {
  const Buffer buffer;
  for (;;) {
    const std::size_t got = fill(from, buffer, done_);
    add({buffer.data(), got});
    if (got == kBufferSize) continue;
    if (done_ != size_) throw failure("it has " + std::to_string(done_) + " bytes instead of " + std::to_string(size_));
    return hash_.finish();
  }
}

Digest copy_exactly(int from, int to, std::uint64_t size, const std::function<void(std::uint64_t)>& advance) {
  ::posix_fadvise(from, 0, 0, POSIX_FADV_SEQUENTIAL);
  return ExactCopy(to, size, advance).rest(from);
}

void read_exactly(int fd, std::uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read");
    if (got == 0) throw failure("it ends after " + std::to_string(offset) + " bytes");
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

Digest hash_exactly(int from, std::uint64_t size, const std::function<void(std::uint64_t)>& advance) {
  ::posix_fadvise(from, 0, 0, POSIX_FADV_SEQUENTIAL);
  return ExactCopy(-1, size, advance).rest(from);
}

Digest read_back(int directory, const std::string& name, std::uint64_t size) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC;
  if (const UniqueFd direct(::openat(directory, name.c_str(), kFlags | O_DIRECT)); direct) {
    // Some filesystems take the flag and refuse the read.
    const Buffer probe;
    if (::pread(direct.get(), probe.data(), 4096, 0) >= 0) return hash_exactly(direct.get(), size);
  }
  const UniqueFd cached(::openat(directory, name.c_str(), kFlags));
  if (!cached) throw system_error("open a new file again");
  ::posix_fadvise(cached.get(), 0, 0, POSIX_FADV_DONTNEED);
  return hash_exactly(cached.get(), size);
}

}  // namespace dsec::registry
