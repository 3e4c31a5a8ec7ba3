#include "layers/overlaybd/raw_image.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/files.h"
#include "layers/overlaybd/layer_input.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::uint64_t kBlock = 4096;      // bytes that are compared at a time
constexpr std::uint64_t kWindow = 1 << 20;  // bytes read at a time

bool is_zero(std::string_view bytes) {
  return bytes.empty() || (bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

enum class Change { None, Zero, Data };

/// One window of both, compared.
class Comparison {
 public:
  Comparison(const RawImage& raw, const Stack* below, std::uint64_t size, DeviceContents& to)
      : raw_(raw), below_(below), size_(size), to_(to) {
    if (below) mappings_ = below->mappings();
  }

  /// Where something may differ next.
  std::uint64_t next(std::uint64_t offset) const {
    std::uint64_t at = offset < raw_.size() ? raw_.next_data(offset) : size_;
    return std::min({at, next_below(offset), size_});
  }

  /// Bytes of data given.
  std::uint64_t window(std::uint64_t offset) {
    const auto length = static_cast<std::size_t>(std::min(kWindow, size_ - offset));
    now_.assign(length, '\0');
    if (offset < raw_.size()) raw_.read(offset, now_.data(), part_of_window(offset, length, raw_.size()));
    before_.assign(below_ ? length : 0, '\0');
    if (below_ && offset < below_->size())
      below_->read(offset, before_.data(), part_of_window(offset, length, below_->size()));
    std::uint64_t given = 0;
    for (std::size_t at = 0; at < length;) {
      const Change change = change_at(at);
      std::size_t end = at + kBlock;
      while (end < length && change_at(end) == change) end += kBlock;
      end = std::min(end, length);
      if (change == Change::Data) {
        to_.data((offset + at) / kSector, std::string_view(now_).substr(at, end - at));
        given += end - at;
      } else if (change == Change::Zero) {
        to_.zeros((offset + at) / kSector, (end - at) / kSector);
      }
      at = end;
    }
    return given;
  }

 private:
  /// Where the next byte lies that a layer below has data for.
  std::uint64_t next_below(std::uint64_t offset) const {
    auto mapping = std::upper_bound(mappings_.begin(), mappings_.end(), offset / kSector,
                                    [](std::uint64_t sector, const Mapping& m) { return sector < m.end(); });
    while (mapping != mappings_.end() && mapping->zero()) ++mapping;
    return mapping == mappings_.end() ? size_ : std::max(offset, mapping->offset() * kSector);
  }
  static std::size_t part_of_window(std::uint64_t offset, std::size_t length, std::uint64_t size) {
    return static_cast<std::size_t>(std::min<std::uint64_t>(length, size - offset));
  }
  Change change_at(std::size_t at) const {
    const std::string_view now = std::string_view(now_).substr(at, kBlock);
    if (!below_) return is_zero(now) ? Change::None : Change::Data;
    if (now == std::string_view(before_).substr(at, kBlock)) return Change::None;
    return is_zero(now) ? Change::Zero : Change::Data;
  }

  const RawImage& raw_;
  const Stack* below_;
  std::uint64_t size_;
  DeviceContents& to_;
  std::vector<Mapping> mappings_;  ///< of what is below
  std::string now_, before_;
};

}  // namespace

RawImage::RawImage(const std::filesystem::path& path)
    : bytes_(file_bytes(open_input(path), quote(path.native()))), holes_(open_input(path)) {}

std::uint64_t RawImage::size() const noexcept { return (bytes_->size() + kSector - 1) / kSector * kSector; }

void RawImage::read(std::uint64_t offset, char* buffer, std::size_t size) const {
  const auto there = static_cast<std::size_t>(std::min<std::uint64_t>(size, bytes_->size() - offset));
  bytes_->read(offset, buffer, there);
  std::memset(buffer + there, 0, size - there);
}

std::uint64_t RawImage::next_data(std::uint64_t offset) const {
  const off_t at = ::lseek(holes_.get(), static_cast<off_t>(offset), SEEK_DATA);
  if (at >= 0) return static_cast<std::uint64_t>(at);
  if (errno == ENXIO) return size();
  return offset;  // a block device, or a file system that does not tell
}

std::uint64_t write_raw(const RawImage& raw, const Stack* below, std::uint64_t size, DeviceContents& to,
                        Progress& progress) {
  const std::string step = "read the image";
  progress.begin(step);
  Comparison comparison(raw, below, size, to);
  std::uint64_t given = 0;
  for (std::uint64_t at = comparison.next(0); at < size;) {
    const std::uint64_t begin = at / kWindow * kWindow;
    given += comparison.window(begin);
    progress.advance(step, std::min(begin + kWindow, size), size);
    at = begin + kWindow < size ? comparison.next(begin + kWindow) : size;
  }
  progress.end(step, "");
  return given;
}

}  // namespace dsec::layers::overlaybd
