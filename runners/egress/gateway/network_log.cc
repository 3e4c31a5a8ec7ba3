#include "runners/egress/gateway/network_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/sealed_lines.h"

namespace dsec::egress {
namespace {

constexpr std::uint64_t kMost = 32ull << 20, kMostDenied = kMost / 2;
// Beyond that only how much is lost: a line each time that it has doubled.
constexpr std::uint64_t kMostOfAll = kMost + (1 << 20);
constexpr std::size_t kLongestLine = 64 << 10;

std::uint64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

NetworkLog::NetworkLog(int fd, const std::string& sandbox) : fd_(fd) {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) throw system_error("look at the network log");
  const auto whole = static_cast<std::uint64_t>(info.st_size);
  const std::uint64_t from = whole - std::min<std::uint64_t>(whole, 2 * kLongestLine);
  std::string end(whole - from, '\0');
  if (::pread(fd_, end.data(), end.size(), static_cast<off_t>(from)) != static_cast<ssize_t>(end.size()))
    throw system_error("read the network log");
  end.resize(end.rfind('\n') + 1);
  if (from + end.size() < whole && ::ftruncate(fd_, static_cast<off_t>(from + end.size())) != 0)
    throw system_error("take away an unfinished line of the network log");
  size_ = from + end.size();
  if (size_ == 0) {
    if (!append({{"schema", 1}, {"sandbox", sandbox}}, kMost)) throw system_error("begin the network log");
    return;
  }
  std::string_view last = std::string_view(end).substr(0, end.empty() ? 0 : end.size() - 1), body;
  if (const std::size_t before = last.rfind('\n'); before != std::string_view::npos) last.remove_prefix(before + 1);
  if (!read_seal(last, body, checksum_))
    throw failure("the network log of the sandbox is damaged").hint("move its network.jsonl away, and try again");
}

NetworkLog::~NetworkLog() { tell_lost(); }

void NetworkLog::write(const Json& record, bool denied) {
  Json timed = record;
  timed["time_us"] = now_us();
  if (append(timed, denied ? kMostDenied : kMost)) return;
  if (++lost_ < tell_at_) return;
  tell_at_ *= 2;
  tell_lost();
}

void NetworkLog::lose(std::uint64_t records) {
  lost_ += records;
  tell_lost();
}

void NetworkLog::tell_lost() {
  if (lost_ && append({{"time_us", now_us()}, {"lost", lost_}}, kMostOfAll)) lost_ = 0;
}

// False when it does not fit; then nothing of it stays.
bool NetworkLog::append(const Json& record, std::uint64_t limit) {
  std::uint32_t next = checksum_;
  const std::string line = sealed_line(canonical_json(record), next);
  if (size_ + line.size() > limit || line.size() > kLongestLine) return false;
  const ssize_t wrote = ::write(fd_, line.data(), line.size());
  if (wrote != static_cast<ssize_t>(line.size())) {
    // Where it cannot be taken away it is damage, which readers find.
    if (wrote > 0 && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) size_ += static_cast<std::uint64_t>(wrote);
    return false;
  }
  checksum_ = next;
  size_ += line.size();
  return true;
}

}  // namespace dsec::egress
