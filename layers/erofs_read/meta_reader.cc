#include "layers/erofs_read/meta_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dsec::layers {
namespace {

constexpr std::uint64_t kWindow = 64 << 10;  // bytes
constexpr std::size_t kWindows = 64;

void pread_all(int fd, std::uint64_t offset, char* buffer, std::size_t length, const MetaReader& reader) {
  while (length > 0) {
    const ssize_t got = ::pread(fd, buffer, length, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read " + reader.name());
    if (got == 0) throw reader.damaged("it became shorter while it was read");
    buffer += got;
    offset += static_cast<std::uint64_t>(got);
    length -= static_cast<std::size_t>(got);
  }
}

}  // namespace

MetaReader::MetaReader(UniqueFd file, std::string name)
    : file_(std::move(file)), name_(std::move(name)), windows_(kWindows) {
  struct stat facts {};
  if (::fstat(file_.get(), &facts) != 0) throw system_error("examine " + name_);
  size_ = static_cast<std::uint64_t>(facts.st_size);
}

Error MetaReader::damaged(const std::string& what) const { return failure("image " + name_ + " is damaged: " + what); }

const MetaReader::Window& MetaReader::window(std::uint64_t number) {
  Window& window = windows_[number % kWindows];
  if (window.number == number) return window;
  window.number = ~0ull;
  window.bytes.resize(std::min(kWindow, size_ - number * kWindow));
  pread_all(file_.get(), number * kWindow, window.bytes.data(), window.bytes.size(), *this);
  window.number = number;
  return window;
}

void MetaReader::read_into(std::uint64_t offset, char* buffer, std::size_t length) {
  if (offset > size_ || length > size_ - offset)
    throw damaged("it refers to " + std::to_string(length) + " bytes at " + std::to_string(offset) +
                  ", beyond its end");
  if (length > kWindow) return pread_all(file_.get(), offset, buffer, length, *this);
  while (length > 0) {
    const Window& part = window(offset / kWindow);
    const std::size_t at = offset % kWindow, take = std::min(length, part.bytes.size() - at);
    std::memcpy(buffer, part.bytes.data() + at, take);
    buffer += take;
    offset += take;
    length -= take;
  }
}

std::string MetaReader::read(std::uint64_t offset, std::size_t length) {
  if (offset > size_ || length > size_ - offset)
    throw damaged("it refers to " + std::to_string(length) + " bytes at " + std::to_string(offset) +
                  ", beyond its end");
  std::string bytes(length, '\0');
  read_into(offset, bytes.data(), length);
  return bytes;
}

}  // namespace dsec::layers
