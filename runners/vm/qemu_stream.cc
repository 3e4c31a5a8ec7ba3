#include "runners/vm/qemu_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"

// A stream has a header, then sections. Those of the memory come first, in several pieces; each has records of eight
// bytes, an address whose low bits say what it is and what follows. All numbers are big-endian.

namespace dsec::runners {
namespace {

constexpr std::uint32_t kMagic = 0x5145564d, kVersion = 3;
enum Section : std::uint8_t { kStart = 1, kPart = 2, kEnd = 3, kFull = 4, kConfiguration = 7, kFooter = 0x7e };
enum Record : std::uint64_t { kZeroPage = 0x02, kSizes = 0x04, kPage = 0x08, kEndOfRecords = 0x10, kSameBlock = 0x20 };
constexpr std::size_t kPageSize = 4096;
constexpr std::uint64_t kFlags = kPageSize - 1;
constexpr std::size_t kBuffer = 256u << 10;

// Pages that follow each other are written as one.
class Pages {
 public:
  Pages(int file, std::uint64_t size) : file_(file), size_(size), written_(size / kPageSize) {
    if (::ftruncate(file, static_cast<off_t>(size)) != 0) throw system_error("make room for the memory");
  }
  void put(std::uint64_t address, std::string_view page) {
    if (address != at_ + run_.size() || run_.size() >= kBuffer) flush();
    if (run_.empty()) at_ = address;
    run_ += page;
    written_[index_of(address)] = true;
  }
  // Where nothing was written it is zero.
  void put_zeros(std::uint64_t address) {
    if (written_[index_of(address)]) put(address, std::string(kPageSize, '\0'));
  }
  void flush() {
    for (std::size_t done = 0; done < run_.size();) {
      const ssize_t put = ::pwrite(file_, run_.data() + done, run_.size() - done, static_cast<off_t>(at_ + done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) throw system_error("write the memory");
      done += static_cast<std::size_t>(put);
    }
    run_.clear();
  }

 private:
  std::size_t index_of(std::uint64_t address) const {
    if (address >= size_) throw failure("it has a page beyond the memory");
    return address / kPageSize;
  }

  const int file_;
  const std::uint64_t size_;
  std::vector<bool> written_;
  std::uint64_t at_ = 0;
  std::string run_;
};

class Splitter {
 public:
  Splitter(const ReadSome& read, std::string_view memory, std::uint64_t size, int pages, int state)
      : read_(read), memory_(memory), pages_(pages, size), state_(state) {}

  void run() {
    if (number(4) != kMagic) throw failure("it does not begin as one");
    if (number(4) != kVersion) throw failure("it is of another version than " + std::to_string(kVersion));
    std::uint8_t type = byte();
    if (type == kConfiguration) {
      keep(number(4));
      type = byte();
    }
    // Until the section of something else, of which there is one.
    while (is_of_memory(type)) {
      records();
      if (byte() != kFooter) throw failure("a section of it has no end");
      keep(4);
      type = byte();
    }
    if (type != kFull || !began_) throw failure("it has sections that are not known");
    keep_rest();
    pages_.flush();
    write_out();
  }

 private:
  bool is_of_memory(std::uint8_t type) {
    if (type != kStart && type != kPart && type != kEnd) return false;
    const std::uint64_t section = number(4);
    if (type == kStart) {
      if (began_ || name() != "ram") throw failure("it has more than a memory");
      keep(8);
      section_ = section;
      began_ = true;
    }
    if (!began_ || section != section_) throw failure("it has sections that are not known");
    return true;
  }

  void records() {
    for (;;) {
      if (kept_.size() > kBuffer) write_out();
      const std::size_t begin = kept_.size();
      const std::uint64_t record = number(8), address = record & ~kFlags;
      const std::uint64_t kind = record & kFlags & ~std::uint64_t{kSameBlock};
      if (kind == kEndOfRecords) return;
      if (kind == kSizes) {
        sizes(address);
        continue;
      }
      if (kind != kPage && kind != kZeroPage) throw failure("it has records that are not known");
      if (!(record & kSameBlock)) ours_ = name() == memory_;
      const std::size_t size = kind == kPage ? kPageSize : 1;
      if (!ours_) {
        keep(size);
        continue;
      }
      kept_.resize(begin);
      const std::string_view data = take(size);
      if (kind == kPage) {
        pages_.put(address, data);
      } else {
        pages_.put_zeros(address);
      }
    }
  }

  // Of each block its name and size.
  void sizes(std::uint64_t left) {
    while (left > 0) {
      name();
      const std::uint64_t size = number(8);
      if (size == 0 || size > left) throw failure("it tells sizes that are none");
      left -= size;
    }
  }

  // The next bytes, as long as nothing else is taken.
  std::string_view take(std::size_t size) {
    if (buffer_.size() - at_ < size) {
      buffer_.erase(0, at_);
      at_ = 0;
      while (buffer_.size() < size) {
        const std::size_t had = buffer_.size();
        buffer_.resize(had + kBuffer);
        const std::size_t got = read_(buffer_.data() + had, kBuffer);
        buffer_.resize(had + got);
        if (got == 0) throw failure("it ends early");
      }
    }
    const std::string_view taken(buffer_.data() + at_, size);
    at_ += size;
    return taken;
  }

  // What is read by these is kept, too.
  std::string_view keep(std::size_t size) {
    if (size > kBuffer) throw failure("it has a field of " + std::to_string(size) + " bytes");
    const std::string_view taken = take(size);
    kept_ += taken;
    return taken;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(keep(1)[0]); }
  std::uint64_t number(std::size_t size) {
    std::uint64_t value = 0;
    for (const char c : keep(size)) value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }
  std::string name() { return std::string(keep(byte())); }

  void keep_rest() {
    kept_ += std::string_view(buffer_).substr(at_);
    buffer_.resize(kBuffer);
    for (std::size_t got = 0; (got = read_(buffer_.data(), kBuffer)) > 0;) {
      kept_.append(buffer_, 0, got);
      write_out();
    }
  }
  void write_out() {
    written_ += kept_.size();
    if (written_ > kMostState) throw failure("it has more beside the memory than a machine has");
    write_all(state_, kept_);
    kept_.clear();
  }

  const ReadSome& read_;
  const std::string memory_;
  Pages pages_;
  const int state_;
  std::uint64_t section_ = 0, written_ = 0;
  bool began_ = false;
  bool ours_ = false;  ///< the page before was one of the memory
  std::string buffer_, kept_;
  std::size_t at_ = 0;
};

}  // namespace

void split_qemu_stream(const ReadSome& read, std::string_view memory, std::uint64_t size, int pages, int state) {
  attempt("cannot read what QEMU has saved", [&] { Splitter(read, memory, size, pages, state).run(); });
}

}  // namespace dsec::runners
