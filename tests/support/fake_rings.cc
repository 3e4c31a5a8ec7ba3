#include "tests/support/fake_rings.h"

#include <fcntl.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::test {
namespace {

// Byte offsets: four positions, n + 1 requests of 56 bytes, n + 1 results of 24, n + 1 submissions of 16, a semaphore
// of 32, 4096 to spare.
constexpr std::size_t kPositions = 16, kRequest = 56, kResult = 24, kSubmission = 16, kSemaphore = 32, kSpare = 4096;
enum Position : std::size_t { kSubmissionHead = 0, kSubmissionTail = 4, kResultHead = 8, kResultTail = 12 };

template <typename T>
T get(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <typename T>
void put(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

std::string random_name(const std::string& prefix) {
  std::string path = "/dev/shm/" + prefix + "XXXXXX";
  const UniqueFd made(::mkstemp(path.data()));
  if (!made) throw system_error("make a file in /dev/shm");
  return path.substr(std::strlen("/dev/shm/"));
}

// "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" as its 16 bytes.
std::optional<std::string> parse_id(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  std::string id, digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (text[i] != '-') return std::nullopt;
    } else if (std::string_view("0123456789abcdef").find(text[i]) == std::string_view::npos) {
      return std::nullopt;
    } else {
      digits += text[i];
    }
  }
  for (std::size_t i = 0; i < digits.size(); i += 2)
    id += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return id;
}

}  // namespace

struct FakeRings::Memory {
  std::string id;
  char* data = nullptr;
  std::size_t size = 0;
  pid_t by = 0;
  bool is_ring = false, no_holes = false;
  std::int32_t done = 0;  ///< submissions up to here were taken
  int answers = 0;

  ~Memory() {
    if (data) ::munmap(data, size);
  }
  std::int32_t places() const {
    return static_cast<std::int32_t>((size - kSpare - kPositions - kSemaphore) / (kRequest + kResult + kSubmission));
  }
  std::int32_t& position(Position which) { return *reinterpret_cast<std::int32_t*>(data + which); }
  std::int32_t load(Position which) { return std::atomic_ref(position(which)).load(); }
  void store(Position which, std::int32_t value) { std::atomic_ref(position(which)).store(value); }
  char* request(std::int32_t slot) { return data + kPositions + kRequest * static_cast<std::size_t>(slot); }
  char* results() { return request(places()); }
  char* submissions() { return results() + kResult * static_cast<std::size_t>(places()); }
  sem_t* semaphore() {
    return reinterpret_cast<sem_t*>(submissions() + kSubmission * static_cast<std::size_t>(places()));
  }
};

FakeRings::FakeRings(ReadInode read) : read_(std::move(read)), wake_name_(random_name("sem.fake-3fs-")) {
  const UniqueFd fd(::open(wake_target().c_str(), O_RDWR | O_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), sizeof(sem_t)) != 0) throw system_error("make a semaphore");
  wake_ = ::mmap(nullptr, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (wake_ == MAP_FAILED || ::sem_init(static_cast<sem_t*>(wake_), 1, 0) != 0) throw system_error("make a semaphore");
  server_ = std::thread([this] { serve(); });
}

FakeRings::~FakeRings() {
  stop_ = true;
  server_.join();
  ::munmap(wake_, sizeof(sem_t));
  ::unlink(wake_target().c_str());
}

int FakeRings::add(std::string_view name, std::string_view target, pid_t by) {
  const std::lock_guard lock(mutex_);
  if (fault == RingFault::Refuses || static_cast<int>(memories_.size()) >= most_registered) return EMFILE;
  auto memory = std::make_shared<Memory>();
  memory->by = by;
  std::string_view rest = name.substr(std::min(name.find('.'), name.size()));
  const auto id = parse_id(name.substr(0, name.size() - rest.size()));
  if (!id || !target.starts_with("/dev/shm/")) return EINVAL;
  memory->id = *id;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string part(rest.substr(0, rest.find('.')));
    rest.remove_prefix(part.size());
    if (part.starts_with("r")) memory->is_ring = true;
    if (part.starts_with("f")) memory->no_holes = (std::strtoul(part.c_str() + 1, nullptr, 2) & 2) != 0;
    if (part.empty() || std::string_view("rtf").find(part[0]) == std::string_view::npos) return EINVAL;
  }
  const UniqueFd fd(::open(std::string(target).c_str(), O_RDWR | O_CLOEXEC));
  struct stat status;
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return EINVAL;
  memory->size = static_cast<std::size_t>(status.st_size);
  void* const mapped = ::mmap(nullptr, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) return EINVAL;
  memory->data = static_cast<char*>(mapped);
  if (memory->is_ring) ::sem_init(memory->semaphore(), 1, 0);
  memories_.emplace(std::string(name), std::move(memory));
  return 0;
}

void FakeRings::remove(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto found = memories_.find(name); found != memories_.end()) memories_.erase(found);
}

std::vector<std::string> FakeRings::forget(pid_t by) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> gone;
  for (const auto& [name, memory] : memories_)
    if (memory->by == by) gone.push_back(name);
  for (const std::string& name : gone) memories_.erase(name);
  return gone;
}

std::size_t FakeRings::registered() const {
  const std::lock_guard lock(mutex_);
  return memories_.size();
}

void FakeRings::serve() {
  while (!stop_) {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1'000'000;
    if (until.tv_nsec >= 1'000'000'000) {
      until.tv_nsec -= 1'000'000'000;
      ++until.tv_sec;
    }
    ::sem_timedwait(static_cast<sem_t*>(wake_), &until);
    std::vector<std::shared_ptr<Memory>> rings;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [name, memory] : memories_)
        if (memory->is_ring) rings.push_back(memory);
    }
    // Not under the lock: reading asks the filesystem, which asks us to register.
    for (const auto& ring : rings)
      if (fault != RingFault::Deaf) work(*ring);
  }
}

std::shared_ptr<FakeRings::Memory> FakeRings::buffer(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, memory] : memories_)
    if (!memory->is_ring && memory->id == id) return memory;
  return nullptr;
}

std::int64_t FakeRings::carry_out(const char* request, bool no_holes) {
  const std::shared_ptr<Memory> memory = buffer(std::string(request, 16));
  const auto at = get<std::uint64_t>(request + 16), inode = get<std::uint64_t>(request + 24),
             offset = get<std::uint64_t>(request + 32), length = get<std::uint64_t>(request + 40);
  if (!memory || at > memory->size || length > memory->size - at) return -EINVAL;
  char* const to = memory->data + at;
  const std::int64_t got = read_(inode, offset, to, length, no_holes && fault != RingFault::ZerosForHoles);
  if (got > 0 && fault == RingFault::WrongBytes) to[0] = static_cast<char>(to[0] ^ 1);
  return got;
}

void FakeRings::answer(Memory& ring, std::int32_t slot, std::int64_t result, std::uint64_t tag) {
  const std::int32_t head = ring.load(kResultHead);
  if (head < 0 || head >= ring.places()) return;
  char* const at = ring.results() + kResult * static_cast<std::size_t>(head);
  put(at, slot);
  put(at + 8, result);
  put(at + 16, tag);
  ring.store(kResultHead, (head + 1) % ring.places());
  ++ring.answers;
}

void FakeRings::work(Memory& ring) {
  const RingFault now = fault;
  const std::int32_t head = ring.load(kSubmissionHead);
  if (head < 0 || head >= ring.places() || ring.done == head) return;
  while (ring.done != head) {
    if (now == RingFault::StopsHalfway && ring.answers > 0) return;
    const char* const submission = ring.submissions() + kSubmission * static_cast<std::size_t>(ring.done);
    const auto slot = get<std::int32_t>(submission);
    const auto tag = get<std::uint64_t>(submission + 8);
    ring.done = (ring.done + 1) % ring.places();
    if (now == RingFault::TailOutside)
      ring.store(kSubmissionTail, -7);
    else if (now != RingFault::FullForever)
      ring.store(kSubmissionTail, ring.done);
    if (slot < 0 || slot >= ring.places() - 1) continue;
    const char* const request = ring.request(slot);
    std::int64_t result = carry_out(request, ring.no_holes);
    if (result > 0) bytes += static_cast<std::uint64_t>(result);
    const auto length = static_cast<std::int64_t>(get<std::uint64_t>(request + 40));
    switch (now) {
      case RingFault::Negative:
        result = -EREMOTEIO;
        break;
      case RingFault::Absurd:
        result = std::numeric_limits<std::int64_t>::min();
        break;
      case RingFault::Short:
        result = std::max<std::int64_t>(result - 1, 0);
        break;
      case RingFault::TooLong:
        result = length + 1;
        break;
      default:
        break;
    }
    const std::int32_t told = now == RingFault::WrongSlot     ? (slot + 1) % (ring.places() - 1)
                              : now == RingFault::SlotOutside ? ring.places() + 1000
                                                              : slot;
    answer(ring, told, result, now == RingFault::WrongTag ? tag + 1000 : tag);
    if (now == RingFault::Twice) answer(ring, told, result, tag);
  }
  if (now == RingFault::Garbage) {
    for (std::size_t at = 0; at + 8 <= ring.size; at += 8) put(ring.data + at, static_cast<std::uint64_t>(random_()));
    // Positions that exist, so that what they point at is looked at, too.
    ring.store(kResultHead, static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(ring.places())));
    ring.store(kSubmissionTail, 0);
    return;
  }
  if (now == RingFault::HeadOutside) ring.store(kResultHead, 1'000'000);
  ::sem_post(ring.semaphore());
}

}  // namespace dsec::test
