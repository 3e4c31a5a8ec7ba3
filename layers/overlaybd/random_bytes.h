#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::layers::overlaybd {

/// Bytes that can be read at any place; several threads may do so at once.
class RandomBytes {
 public:
  /// `name` is for messages, as it is shown.
  RandomBytes(std::string name, std::uint64_t size) : name_(std::move(name)), size_(size) {}
  virtual ~RandomBytes() = default;
  RandomBytes(const RandomBytes&) = delete;
  RandomBytes& operator=(const RandomBytes&) = delete;

  std::uint64_t size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  /// Throws Error when the range does not lie within these bytes.
  void read(std::uint64_t offset, char* buffer, std::size_t size) const;
  std::string read(std::uint64_t offset, std::size_t size) const;
  /// "NAME is damaged: WHAT".
  Error damaged(const std::string& what) const;

 private:
  virtual void read_within(std::uint64_t offset, char* buffer, std::size_t size) const = 0;

  std::string name_;
  std::uint64_t size_;
};

/// A file or block device. Its size is taken once; one that gets shorter is told as damaged.
std::unique_ptr<RandomBytes> file_bytes(UniqueFd file, std::string name);
/// A part of others, which must contain it.
std::unique_ptr<RandomBytes> part_of(std::unique_ptr<RandomBytes> whole, std::uint64_t offset, std::uint64_t size);

}  // namespace dsec::layers::overlaybd
