#include "layers/overlaybd/random_bytes.h"

#include <unistd.h>

#include <cerrno>

namespace dsec::layers::overlaybd {
namespace {

class FileBytes : public RandomBytes {
 public:
  FileBytes(UniqueFd file, std::string name, std::uint64_t size)
      : RandomBytes(std::move(name), size), file_(std::move(file)) {}

 private:
  void read_within(std::uint64_t offset, char* buffer, std::size_t size) const override {
    while (size > 0) {
      const ssize_t got = ::pread(file_.get(), buffer, size, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error("read " + name());
      if (got == 0) throw damaged("it became shorter while it was read");
      buffer += got;
      offset += static_cast<std::uint64_t>(got);
      size -= static_cast<std::size_t>(got);
    }
  }

  UniqueFd file_;
};

class PartOfBytes : public RandomBytes {
 public:
  PartOfBytes(std::unique_ptr<RandomBytes> whole, std::uint64_t offset, std::uint64_t size)
      : RandomBytes(whole->name(), size), whole_(std::move(whole)), offset_(offset) {}

 private:
  void read_within(std::uint64_t offset, char* buffer, std::size_t size) const override {
    whole_->read(offset_ + offset, buffer, size);
  }

  std::unique_ptr<RandomBytes> whole_;
  std::uint64_t offset_;
};

}  // namespace

Error RandomBytes::damaged(const std::string& what) const { return failure(name_ + " is damaged: " + what); }

void RandomBytes::read(std::uint64_t offset, char* buffer, std::size_t size) const {
  if (offset > size_ || size > size_ - offset)
    throw damaged("it refers to " + std::to_string(size) + " bytes at " + std::to_string(offset) + ", beyond its end");
  read_within(offset, buffer, size);
}

std::string RandomBytes::read(std::uint64_t offset, std::size_t size) const {
  // Before anything is allocated: the size may come from the file.
  if (offset > size_ || size > size_ - offset) read(offset, nullptr, size);
  std::string bytes(size, '\0');
  read(offset, bytes.data(), size);
  return bytes;
}

std::unique_ptr<RandomBytes> file_bytes(UniqueFd file, std::string name) {
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size < 0) throw system_error("find the size of " + name);
  return std::make_unique<FileBytes>(std::move(file), std::move(name), static_cast<std::uint64_t>(size));
}

std::unique_ptr<RandomBytes> part_of(std::unique_ptr<RandomBytes> whole, std::uint64_t offset, std::uint64_t size) {
  if (offset > whole->size() || size > whole->size() - offset)
    throw whole->damaged("it tells of " + std::to_string(size) + " bytes at " + std::to_string(offset) + ", and has " +
                         std::to_string(whole->size()));
  return std::make_unique<PartOfBytes>(std::move(whole), offset, size);
}

}  // namespace dsec::layers::overlaybd
