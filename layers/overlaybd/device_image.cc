#include "layers/overlaybd/device_image.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/base/files.h"
#include "layers/overlaybd/write_at.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::uint64_t kBlock = 4096;     // bytes that become a hole together
constexpr std::uint64_t kPiece = 1 << 20;  // bytes read at a time

/// Where holes may be left: the file begins nowhere else than at its end, and takes bytes at any place.
bool can_be_sparse(int fd, off_t& begin) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  begin = ::lseek(fd, 0, SEEK_CUR);
  return begin >= facts.st_size && (::fcntl(fd, F_GETFL) & O_APPEND) == 0;
}

bool is_zero(std::string_view bytes) {
  return bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

class Writer {
 public:
  explicit Writer(int fd) : fd_(fd), sparse_(can_be_sparse(fd, begin_)) {}

  void zeros(std::uint64_t size) {
    if (sparse_) {
      done_ += size;
      return;
    }
    static const std::string kZeros(kPiece, '\0');
    for (; size > 0; size -= std::min(kPiece, size))
      write_all(fd_, std::string_view(kZeros).substr(0, static_cast<std::size_t>(std::min(kPiece, size))));
  }

  void data(std::string_view bytes) {
    // Blocks are those of the device, whatever the runs.
    while (!bytes.empty()) {
      const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock - told_ % kBlock, bytes.size()));
      block(bytes.substr(0, size));
      told_ += size;
      bytes.remove_prefix(size);
    }
  }
  void skip(std::uint64_t size) { told_ += size; }

  void finish() {
    if (!sparse_) return;
    const off_t end = begin_ + static_cast<off_t>(done_);
    if (::ftruncate(fd_, end) != 0) throw system_error("set the size of the image");
    // Whoever shares the descriptor goes on behind it.
    if (::lseek(fd_, end, SEEK_SET) < 0) throw system_error("seek");
  }
  std::uint64_t written() const noexcept { return written_; }

 private:
  void block(std::string_view bytes) {
    if (is_zero(bytes)) return zeros(bytes.size());
    written_ += bytes.size();
    if (!sparse_) return write_all(fd_, bytes);
    write_at(fd_, static_cast<std::uint64_t>(begin_) + done_, bytes);
    done_ += bytes.size();
  }

  int fd_;
  off_t begin_ = 0;
  bool sparse_;
  std::uint64_t done_ = 0;     ///< of a sparse file: bytes behind its begin
  std::uint64_t told_ = 0;     ///< bytes of the device
  std::uint64_t written_ = 0;  ///< bytes that are not zero
};

}  // namespace

std::uint64_t write_image(const Stack& stack, int fd, Progress& progress) {
  const std::string step = "write the device";
  progress.begin(step);
  Writer writer(fd);
  std::string buffer;
  stack.visit(0, stack.size(), [&](const Stack::Run& run) {
    if (run.kind != Stack::Run::Kind::Data) {
      writer.zeros(run.size);
      writer.skip(run.size);
    } else {
      for (std::uint64_t done = 0; done < run.size; done += buffer.size()) {
        Stack::Run part = run;
        part.offset += done;
        part.place += done;
        part.size = std::min(kPiece, run.size - done);
        buffer.resize(static_cast<std::size_t>(part.size));
        stack.read(part, buffer.data());
        writer.data(buffer);
      }
    }
    progress.advance(step, run.offset + run.size, stack.size());
  });
  writer.finish();
  progress.end(step, "");
  return writer.written();
}

}  // namespace dsec::layers::overlaybd
