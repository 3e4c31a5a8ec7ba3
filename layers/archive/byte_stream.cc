#include "layers/archive/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

// Large enough that system calls do not count, small enough to stay in the second-level cache for the digest.
constexpr std::size_t kPiece = 512 << 10;

std::size_t read_at(const FileSpan& span, std::uint64_t position, char* out, std::size_t size, int beginnings = 0) {
  const std::uint64_t at = span.offset + position;
  if (span.arrival) size = std::min<std::uint64_t>(size, span.arrival->wait_for(at, beginnings) - at);
  for (;;) {
    const ssize_t got = ::pread(span.file->get(), out, size, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read");
    if (got == 0) throw refusal(Refusal::Truncated, "the file became shorter while it was read");
    return static_cast<std::size_t>(got);
  }
}

}  // namespace

void Arrival::advance(std::uint64_t bytes) {
  const std::lock_guard guard(mutex_);
  bytes_ = bytes;
  moved_.notify_all();
}

void Arrival::begin_anew() {
  const std::lock_guard guard(mutex_);
  bytes_ = 0;
  ++beginnings_;
  moved_.notify_all();
}

void Arrival::finish() {
  const std::lock_guard guard(mutex_);
  finished_ = true;
  moved_.notify_all();
}

void Arrival::fail(Error error) {
  const std::lock_guard guard(mutex_);
  error_ = std::move(error);
  moved_.notify_all();
}

int Arrival::beginnings() {
  const std::lock_guard guard(mutex_);
  return beginnings_;
}

std::uint64_t Arrival::wait_for(std::uint64_t position, int beginnings) {
  std::unique_lock lock(mutex_);
  moved_.wait(lock, [&] { return bytes_ > position || error_ || beginnings_ != beginnings; });
  if (beginnings_ != beginnings) throw failure("what was read comes once more");
  if (bytes_ > position) return bytes_;
  throw *error_;
}

bool Arrival::stays(int beginnings) {
  std::unique_lock lock(mutex_);
  moved_.wait(lock, [&] { return finished_ || error_ || beginnings_ != beginnings; });
  if (beginnings_ != beginnings) return false;
  if (error_) throw *error_;
  return true;
}

FileSpan FileSpan::open(const std::filesystem::path& path) {
  UniqueFd fd = open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw system_error("stat " + quote(path.native()));
  if (!S_ISREG(status.st_mode)) throw failure(quote(path.native()) + " is no regular file");
  return {std::make_shared<const UniqueFd>(std::move(fd)), 0, static_cast<std::uint64_t>(status.st_size)};
}

FileSpan::Stamp FileSpan::stamp() const {
  struct stat status;
  if (::fstat(file->get(), &status) != 0) throw system_error("stat an archive");
  return {status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_size};
}

std::string FileSpan::read(std::uint64_t limit) const {
  if (size > limit)
    throw refusal(Refusal::SizeLimit,
                  std::to_string(size) + " bytes, at most " + std::to_string(limit) + " are read of such a document");
  std::string content(size, '\0');
  for (std::uint64_t done = 0; done < size;) done += read_at(*this, done, content.data() + done, size - done);
  return content;
}

SpanStream::SpanStream(FileSpan span)
    : span_(std::move(span)), beginnings_(span_.arrival ? span_.arrival->beginnings() : 0), buffer_(new char[kPiece]) {
  ::posix_fadvise(span_.file->get(), static_cast<off_t>(span_.offset), static_cast<off_t>(span_.size),
                  POSIX_FADV_SEQUENTIAL);
}

std::string_view SpanStream::next() {
  const std::size_t want = std::min<std::uint64_t>(kPiece, span_.size - position_);
  if (want == 0) return {};
  const std::size_t got = read_at(span_, position_, buffer_.get(), want, beginnings_);
  position_ += got;
  return {buffer_.get(), got};
}

std::uint64_t SpanStream::skip(std::uint64_t size) {
  const std::uint64_t skipped = std::min(size, span_.size - position_);
  position_ += skipped;
  return skipped;
}

std::string_view HashingStream::next() {
  const std::string_view piece = under_.next();
  hash_.update(piece);
  position_ += piece.size();
  return piece;
}

Digest HashingStream::finish() {
  while (!next().empty()) continue;
  return hash_.finish();
}

}  // namespace dsec::layers
