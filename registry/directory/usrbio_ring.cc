#include "registry/directory/usrbio_ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>
#include <thread>

#include "core/base/files.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

using Kind = UsrbioFault::Kind;
using Id = std::array<std::uint8_t, 16>;

constexpr std::int32_t kPlaces = static_cast<std::int32_t>(UsrbioRing::kRequests) + 1;
// Results are looked for, and the semaphore in the ring is left alone: libc aborts whoever waits on a corrupt one.
constexpr std::chrono::microseconds kLookSoon{20}, kLookLater{1000};
constexpr std::int64_t kLargestErrno = 4095;

UsrbioFault broken(const std::string& how) {
  return UsrbioFault(Kind::Lasting, failure("the ring holds what cannot be: " + how));
}

Id random_id() {
  Id id;
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) throw system_error("get random bytes");
  return id;
}

std::string uuid(const Id& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < id.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[id[i] >> 4];
    text += kDigits[id[i] & 15];
  }
  return text;
}

fs::path memory_file() { return fs::path(usrbio::kMemory) / ("hf3fs-iov-" + uuid(random_id())); }

// The name comes from the other side: only a file in the one directory is opened.
fs::path wake_file(const fs::path& registration) {
  const std::string target = fs::read_symlink(registration / usrbio::kWakeLink).native();
  if (!target.starts_with(usrbio::kWakePrefix) || target.find('/', usrbio::kMemory.size()) != std::string::npos)
    throw failure("the client names " + quote(target) + " as the semaphore that wakes it");
  return target;
}

std::int32_t position(std::int32_t& shared) { return std::atomic_ref(shared).load(std::memory_order_acquire); }
void set_position(std::int32_t& shared, std::int32_t value) {
  std::atomic_ref(shared).store(value, std::memory_order_release);
}

// sem_post(), done by ourselves for the same reason. Everybody may write to the client's semaphore.
void post(std::byte* semaphore) {
  auto& value = *reinterpret_cast<std::uint32_t*>(semaphore);
  if (std::atomic_ref(value).load() < usrbio::kManyPosts) std::atomic_ref(value).fetch_add(1);
  ::syscall(SYS_futex, &value, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Whatever keeps the client from being used is a fault of one type.
template <typename Action>
auto or_fault(Kind kind, Action&& action) {
  try {
    return action();
  } catch (const UsrbioFault&) {
    throw;
  } catch (const Error& error) {
    throw UsrbioFault(kind, error);
  } catch (const std::system_error& error) {
    throw UsrbioFault(kind, failure(error.what()));
  }
}

}  // namespace

UsrbioRing::Link::Link(const fs::path& target, fs::path path) : path_(std::move(path)) {
  if (::symlink(target.c_str(), path_.c_str()) != 0) throw system_error("register shared memory with the 3FS client");
}

UsrbioRing::Link::~Link() { ::unlink(path_.c_str()); }

UsrbioRing::UsrbioRing(const fs::path& registration, std::chrono::milliseconds patience)
    : patience_(patience),
      wake_(
          or_fault(Kind::Lasting, [&] { return SharedMemory::open(wake_file(registration), usrbio::kSemaphoreSize); })),
      buffer_id_(or_fault(Kind::Lasting, random_id)),
      ring_id_(or_fault(Kind::Lasting, random_id)),
      buffer_(or_fault(Kind::Lasting, [] { return SharedMemory::create(memory_file(), kRequests * kPiece); })),
      memory_(
          or_fault(Kind::Lasting, [] { return SharedMemory::create(memory_file(), usrbio::ring_size(kRequests)); })),
      ring_(memory_.data(), kRequests) {
  or_fault(Kind::Lasting, [&] {
    // When its directory is closed the client forgets what the same thread has registered, which the kernel tells it as
    // the process. A thread of its own keeps our rings apart, and lets all go if we are killed.
    std::exception_ptr error;
    std::thread registrar([&] {
      try {
        enrol(registration);
      } catch (...) {
        error = std::current_exception();
      }
    });
    registrar.join();
    if (error) std::rethrow_exception(error);
  });
}

void UsrbioRing::enrol(const fs::path& registration) {
  held_ = open_file(registration, O_RDONLY | O_DIRECTORY);
  buffer_link_.emplace(buffer_.file(), registration / uuid(buffer_id_));
  ring_link_.emplace(memory_.file(), registration / (uuid(ring_id_) + std::string(usrbio::kRingAttributes)));
  // The client has mapped both: nothing is left of them when we are killed.
  buffer_.forget_name();
  memory_.forget_name();
}

bool UsrbioRing::has_room() const {
  const std::int32_t tail = position(ring_.positions->submission_tail);
  if (tail < 0 || tail >= kPlaces) throw broken("position " + std::to_string(tail) + " of its submissions");
  return (submission_head_ + 1) % kPlaces != tail;
}

void UsrbioRing::submit(std::size_t slot, std::uint64_t inode, std::uint64_t offset, std::uint64_t length) {
  slots_[slot] = {++last_tag_, length, true};
  usrbio::Request request{{}, slot * kPiece, inode, offset, length, last_tag_};
  std::copy(buffer_id_.begin(), buffer_id_.end(), request.memory_id);
  ring_.requests[slot] = request;
  ring_.submissions[submission_head_] = {static_cast<std::int32_t>(slot), 0, last_tag_};
  submission_head_ = (submission_head_ + 1) % kPlaces;
  set_position(ring_.positions->submission_head, submission_head_);
}

void UsrbioRing::check(const usrbio::Result& result) {
  if (result.slot < 0 || result.slot >= kPlaces - 1) throw broken("a result of slot " + std::to_string(result.slot));
  Slot& slot = slots_[static_cast<std::size_t>(result.slot)];
  if (!slot.waits || slot.tag != result.tag) throw broken("a result that nothing was asked for");
  if (result.result < -kLargestErrno) throw broken("a result of " + std::to_string(result.result));
  if (result.result < 0)
    throw UsrbioFault(Kind::Once, failure("the client answers " + errno_text(static_cast<int>(-result.result))));
  const auto bytes = static_cast<std::uint64_t>(result.result);
  if (bytes > slot.length)
    throw broken(std::to_string(bytes) + " bytes where " + std::to_string(slot.length) + " were asked for");
  if (bytes < slot.length)
    throw UsrbioFault(
        Kind::Once, failure("the client gives " + std::to_string(bytes) + " bytes of " + std::to_string(slot.length)));
  slot.waits = false;
}

// False when there is no result.
bool UsrbioRing::collect() {
  const std::int32_t head = position(ring_.positions->result_head);
  if (head < 0 || head >= kPlaces) throw broken("position " + std::to_string(head) + " of its results");
  if (head == result_tail_) return false;
  while (result_tail_ != head) {
    usrbio::Result result;  // looked at once it cannot change any more
    std::memcpy(&result, &ring_.results[result_tail_], sizeof result);
    result_tail_ = (result_tail_ + 1) % kPlaces;
    set_position(ring_.positions->result_tail, result_tail_);
    check(result);
  }
  return true;
}

void UsrbioRing::await(std::size_t slot) {
  auto deadline = Clock::now() + patience_;
  auto pause = kLookSoon;
  while (slots_[slot].waits) {
    if (collect()) {
      deadline = Clock::now() + patience_;
      pause = kLookSoon;
      continue;
    }
    if (Clock::now() >= deadline)
      throw UsrbioFault(Kind::Lasting, failure("the 3FS client has answered nothing for " +
                                               std::to_string(patience_.count()) + " ms"));
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLookLater);
  }
}

std::span<const std::byte> UsrbioRing::buffer_of(std::size_t slot) const {
  return {buffer_.data() + slot * kPiece, static_cast<std::size_t>(slots_[slot].length)};
}

void UsrbioRing::read(std::uint64_t inode, std::uint64_t offset, std::uint64_t length, const Take& take) {
  const std::uint64_t pieces = length / kPiece + (length % kPiece != 0);
  std::uint64_t submitted = 0;
  for (std::uint64_t taken = 0; taken < pieces; ++taken) {
    const std::uint64_t before = submitted;
    for (; submitted < pieces && submitted - taken < kRequests && has_room(); ++submitted)
      submit(submitted % kRequests, inode, offset + submitted * kPiece,
             std::min<std::uint64_t>(kPiece, length - submitted * kPiece));
    if (submitted == taken) throw broken("no room although nothing is under way");
    if (submitted != before) post(wake_.data());
    await(taken % kRequests);
    take(buffer_of(taken % kRequests));
  }
}

}  // namespace dsec::registry
