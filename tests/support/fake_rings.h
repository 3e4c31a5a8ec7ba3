#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace dsec::test {

/// How a ring server behaves.
enum class RingFault {
  None,
  Refuses,        ///< takes no registration
  Deaf,           ///< takes requests and never answers
  StopsHalfway,   ///< gives one result, and no other
  Negative,       ///< EREMOTEIO for every request
  Absurd,         ///< the smallest number there is for every request
  Short,          ///< one byte less than there is
  TooLong,        ///< claims one byte more than asked for
  WrongSlot,      ///< a slot that is not under way
  SlotOutside,    ///< a slot that does not exist
  WrongTag,       ///< somebody else's tag
  Twice,          ///< every result two times
  HeadOutside,    ///< a position of results that does not exist
  TailOutside,    ///< a position of submissions that does not exist
  FullForever,    ///< never lets a submission go
  Garbage,        ///< random bytes all over the ring
  WrongBytes,     ///< as many as asked for, but others
  ZerosForHoles,  ///< lost chunks are zeros whatever the ring was made for
};

/// The other end of the 3FS client's rings ("USRBIO"), as its documentation and its source describe them: written from
/// the byte offsets, and not from what dsec has, so that a mistake there does not cancel out.
class FakeRings {
 public:
  /// Fills memory with what an inode has at an offset: the bytes, fewer at the end, or -errno. With `no_holes` a hole
  /// is ENODATA.
  using ReadInode = std::function<std::int64_t(std::uint64_t inode, std::uint64_t offset, char* to, std::size_t length,
                                               bool no_holes)>;
  explicit FakeRings(ReadInode read);
  FakeRings(const FakeRings&) = delete;
  ~FakeRings();

  /// Target of the link submit-ios.
  std::string wake_target() const { return "/dev/shm/" + wake_name_; }
  /// A symlink `name` to `target` made by a thread: 0 or errno.
  int add(std::string_view name, std::string_view target, pid_t by);
  void remove(std::string_view name);
  /// A thread closed the directory of links: the names of what it had registered, which are gone.
  std::vector<std::string> forget(pid_t by);
  std::size_t registered() const;

  std::atomic<RingFault> fault{RingFault::None};
  std::atomic<std::uint64_t> bytes{0};  ///< given through rings
  std::atomic<int> most_registered{1 << 20};

 private:
  struct Memory;
  void serve();
  void work(Memory& ring);
  std::shared_ptr<Memory> buffer(const std::string& id) const;
  std::int64_t carry_out(const char* request, bool no_holes);
  void answer(Memory& ring, std::int32_t slot, std::int64_t result, std::uint64_t tag);

  const ReadInode read_;
  std::string wake_name_;
  void* wake_ = nullptr;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Memory>, std::less<>> memories_;  ///< by name of the link
  std::mt19937_64 random_{7};
  std::atomic<bool> stop_{false};
  std::thread server_;
};

}  // namespace dsec::test
