#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "registry/directory/shared_memory.h"
#include "registry/directory/usrbio_wire.h"

namespace dsec::registry {

/// A ring did not give what it was asked for. The ring it came from must not be used again.
class UsrbioFault : public Error {
 public:
  /// Once: the client answered that it cannot give these bytes. Lasting: it does not take part, or not as it should.
  enum class Kind { Once, Lasting };
  UsrbioFault(Kind kind, const Error& error) : Error(error), kind_(kind) {}
  bool lasting() const noexcept { return kind_ == Kind::Lasting; }

 private:
  Kind kind_;
};

/// One ring of the 3FS client with memory for what is read through it, registered while the object lives. What the
/// client writes there is not believed: a position, slot, tag or length that cannot be is a fault. One thread at a
/// time.
class UsrbioRing {
 public:
  /// Requests at a time, and bytes of each: the client's storage is fed best with many of 1 to 4 MiB.
  static constexpr std::size_t kRequests = 16, kPiece = 1 << 20;
  using Clock = std::chrono::steady_clock;
  using Take = std::function<void(std::span<const std::byte>)>;

  /// `registration` is the directory usrbio::kRegister of the mount. `patience` is how long the client may give no
  /// result at all. Throws UsrbioFault.
  UsrbioRing(const std::filesystem::path& registration, std::chrono::milliseconds patience);
  UsrbioRing(const UsrbioRing&) = delete;

  /// Reads [offset, offset + length) of an inode that somebody holds open, and hands it to `take` in order. The memory
  /// that `take` gets may be written by a faulty client even then: copy first, then look. Throws UsrbioFault, and what
  /// `take` throws; the ring must not be used after either.
  void read(std::uint64_t inode, std::uint64_t offset, std::uint64_t length, const Take& take);

 private:
  /// A symlink, unlinked on destruction.
  class Link {
   public:
    Link(const std::filesystem::path& target, std::filesystem::path path);
    Link(const Link&) = delete;
    ~Link();

   private:
    std::filesystem::path path_;
  };
  struct Slot {
    std::uint64_t tag = 0, length = 0;
    bool waits = false;
  };

  void enrol(const std::filesystem::path& registration);
  bool has_room() const;
  void submit(std::size_t slot, std::uint64_t inode, std::uint64_t offset, std::uint64_t length);
  void await(std::size_t slot);
  bool collect();
  void check(const usrbio::Result& result);
  std::span<const std::byte> buffer_of(std::size_t slot) const;

  const std::chrono::milliseconds patience_;
  SharedMemory wake_;
  UniqueFd held_;  ///< tells the client that we live
  std::array<std::uint8_t, 16> buffer_id_, ring_id_;
  SharedMemory buffer_, memory_;
  usrbio::Ring ring_;
  std::optional<Link> buffer_link_, ring_link_;
  // Ours; what the shared memory says of them is not read.
  std::int32_t submission_head_ = 0, result_tail_ = 0;
  std::uint64_t last_tag_ = 0;
  std::array<Slot, kRequests> slots_;
};

}  // namespace dsec::registry
