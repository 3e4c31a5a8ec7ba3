#include "layers/erofs/data_hash.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "core/base/error.h"

namespace dsec::layers {
namespace {

// How long the file may grow unread; at disk speed that is a few megabytes.
constexpr std::chrono::milliseconds kLook{10};

std::uint64_t size_of(int fd) {
  struct stat status;
  if (::fstat(fd, &status) != 0) throw system_error("stat the data of an image");
  return static_cast<std::uint64_t>(status.st_size);
}

void append_raw(std::string& out, const Digest& digest) {
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < 64; i += 2)
    out += static_cast<char>(value(digest.hex()[i]) << 4 | value(digest.hex()[i + 1]));
}

}  // namespace

DataHash::DataHash(int fd) : fd_(fd), buffer_(kDataChunk, '\0'), thread_([this] { run(); }) {}

DataHash::~DataHash() {
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DataHash::run() {
  try {
    for (;;) {
      bool complete;
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kLook, [this] { return complete_ || abandoned_; });
        if (abandoned_) return;
        complete = complete_;
      }
      const std::uint64_t size = size_of(fd_);
      hash_until(complete ? size : size / kDataChunk * kDataChunk);
      if (complete) return;
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void DataHash::hash_until(std::uint64_t end) {
  while (position_ < end) {
    const std::size_t want = std::min(kDataChunk, end - position_);
    for (std::size_t done = 0; done < want;) {
      const ssize_t got = ::pread(fd_, buffer_.data() + done, want - done, static_cast<off_t>(position_ + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw system_error("read the data of an image", got < 0 ? errno : EIO);
      done += static_cast<std::size_t>(got);
    }
    const std::string_view chunk = std::string_view(buffer_).substr(0, want);
    whole_.update(chunk);
    append_raw(chunks_, Digest::of(chunk));
    position_ += want;
  }
}

DataHash::Result DataHash::finish() {
  {
    const std::lock_guard lock(mutex_);
    complete_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  return {whole_.finish(), std::move(chunks_)};
}

}  // namespace dsec::layers
