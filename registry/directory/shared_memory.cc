#include "registry/directory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::registry {

SharedMemory::SharedMemory(std::filesystem::path made, int fd, std::size_t size) : made_(std::move(made)), size_(size) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    Error error = system_error("map shared memory");
    forget_name();
    throw error;
  }
  data_ = static_cast<std::byte*>(memory);
}

SharedMemory SharedMemory::create(const std::filesystem::path& file, std::size_t size) {
  const UniqueFd fd = open_file(file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size)); error != 0) {
    ::unlink(file.c_str());
    throw system_error("allocate " + std::to_string(size) + " bytes in " + quote(file.native()), error);
  }
  return SharedMemory(file, fd.get(), size);
}

SharedMemory SharedMemory::open(const std::filesystem::path& file, std::size_t size) {
  const UniqueFd fd = open_file(file, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw system_error("stat " + quote(file.native()));
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) < size)
    throw failure(quote(file.native()) + " is no file of " + std::to_string(size) + " bytes");
  return SharedMemory({}, fd.get(), size);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : made_(std::exchange(other.made_, {})), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

SharedMemory::~SharedMemory() {
  forget_name();
  if (data_) ::munmap(data_, size_);
}

void SharedMemory::forget_name() noexcept {
  if (!made_.empty()) ::unlink(made_.c_str());
  made_.clear();
}

}  // namespace dsec::registry
