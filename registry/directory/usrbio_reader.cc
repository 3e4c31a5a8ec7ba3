#include "registry/directory/usrbio_reader.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/directory/three_fs.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

// 17 MiB of memory each.
constexpr std::size_t kMostRings = 4;

// The client shows the directory at the top of its mount; of one that is mounted in parts, beside the parts.
std::optional<fs::path> registration_above(fs::path directory, dev_t device) {
  for (;; directory = directory.parent_path()) {
    struct stat status;
    const fs::path found = directory / usrbio::kRegister;
    if (::stat(found.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_dev == device) return found;
    if (!directory.has_relative_path()) return std::nullopt;
  }
}

}  // namespace

UsrbioReader::UsrbioReader(fs::path directory, Note note, std::chrono::milliseconds patience)
    : directory_(std::move(directory)), note_(std::move(note)), patience_(patience), most_(kMostRings) {}

// Empty when it does not lie on 3FS, which is nothing to tell.
std::optional<UsrbioReader::Connection> UsrbioReader::connect() const {
  if (!is_three_fs(directory_)) return std::nullopt;
  const fs::path real = fs::canonical(directory_);
  const UniqueFd fd = open_file(real, O_RDONLY | O_DIRECTORY);
  std::uint32_t version = 0;
  if (::ioctl(fd.get(), usrbio::kVersionRequest, &version) != 0) throw system_error("ask the client for its version");
  if (version != usrbio::kVersion)
    throw failure("the client's interface has version " + std::to_string(version) + ", and this dsec knows " +
                  std::to_string(usrbio::kVersion));
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw system_error("stat " + quote(real.native()));
  auto registration = registration_above(real, status.st_dev);
  if (!registration) throw failure("the client shows no " + std::string(usrbio::kRegister));
  return Connection{std::move(*registration), status.st_dev};
}

std::optional<UsrbioReader::Connection> UsrbioReader::connection() {
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (off_) return std::nullopt;
    if (tried_) return connection_;
    tried_ = true;
    try {
      return connection_ = connect();
    } catch (const Error& error) {
      why = error.message();
    } catch (const fs::filesystem_error& error) {
      why = error.what();
    }
  }
  stop(why);
  return std::nullopt;
}

// Null when rings are used no more. Throws UsrbioFault.
std::unique_ptr<UsrbioRing> UsrbioReader::borrow(const Connection& connection) {
  std::unique_lock lock(mutex_);
  for (;;) {
    returned_.wait(lock, [&] { return off_ || !idle_.empty() || (rings_ < most_ && !making_); });
    if (off_) return nullptr;
    if (!idle_.empty()) {
      std::unique_ptr<UsrbioRing> ring = std::move(idle_.back());
      idle_.pop_back();
      return ring;
    }
    ++rings_;
    // One at a time: where there is room for one alone, two could each take half of it.
    making_ = true;
    lock.unlock();
    std::unique_ptr<UsrbioRing> made;
    std::exception_ptr fault;
    try {
      made = std::make_unique<UsrbioRing>(connection.registration, patience_);
    } catch (...) {
      fault = std::current_exception();
    }
    lock.lock();
    making_ = false;
    returned_.notify_all();
    if (made) return made;
    // There may be no memory for so many.
    if (--rings_ == 0) std::rethrow_exception(fault);
    most_ = rings_;
  }
}

void UsrbioReader::give_back(std::unique_ptr<UsrbioRing> ring) {
  {
    const std::lock_guard lock(mutex_);
    if (!off_) idle_.push_back(std::move(ring));
    if (ring) --rings_;
  }
  returned_.notify_all();
}

void UsrbioReader::drop(std::unique_ptr<UsrbioRing> ring) {
  if (!ring) return;
  ring.reset();
  {
    const std::lock_guard lock(mutex_);
    --rings_;
  }
  returned_.notify_all();
}

void UsrbioReader::stop(const std::string& why) {
  std::vector<std::unique_ptr<UsrbioRing>> gone;
  {
    const std::lock_guard lock(mutex_);
    off_ = true;
    gone.swap(idle_);
    rings_ -= gone.size();
  }
  returned_.notify_all();
  tell(why);
}

void UsrbioReader::distrust() {
  {
    const std::lock_guard lock(mutex_);
    if (off_ || rings_ == 0) return;
  }
  stop("what came had the wrong digest");
}

void UsrbioReader::tell(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    if (!told_.insert(what).second) return;
  }
  note_("reading " + quote(directory_.native()) + " through FUSE, past the rings of the 3FS client: " + what);
}

std::uint64_t UsrbioReader::read(int file, std::uint64_t offset, std::uint64_t length, const UsrbioRing::Take& take) {
  const std::optional<Connection> to = connection();
  struct stat status;
  if (!to || ::fstat(file, &status) != 0 || status.st_dev != to->device) return 0;
  std::uint64_t given = 0;
  std::unique_ptr<UsrbioRing> ring;
  try {
    ring = borrow(*to);
    if (!ring) return 0;
    ring->read(status.st_ino, offset, length, [&](std::span<const std::byte> piece) {
      take(piece);
      given += piece.size();
    });
    give_back(std::move(ring));
  } catch (const UsrbioFault& fault) {
    drop(std::move(ring));
    if (fault.lasting())
      stop(fault.message());
    else
      tell(fault.message());
  } catch (...) {
    drop(std::move(ring));
    throw;
  }
  return given;
}

}  // namespace dsec::registry
