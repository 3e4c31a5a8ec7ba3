#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "registry/loader/shared_state.h"

namespace dsec::registry {

/// What a filesystem of blobs is made of: one directory, whose files have their names (ServedName). Any thread.
class FuseFiles {
 public:
  virtual ~FuseFiles() = default;
  /// Bytes of a blob; empty when there is none that is loaded on demand. Throws Error.
  virtual std::optional<std::uint64_t> size(const ServedName& blob) = 0;
  /// It is going to be read.
  virtual void opened(const ServedName&) {}
  /// Nobody has it open any more; but it may be opened at this moment, and must be readable then.
  virtual void closed(const ServedName&) {}
  /// Calls `done` once, now or later, from any thread: an errno or 0, and what was read, which is valid for the call.
  virtual void read(const ServedName& blob, std::uint64_t offset, std::size_t size,
                    std::function<void(int error, std::span<const std::byte> bytes)> done) = 0;
};

/// Answers a FUSE connection, in the kernel's own protocol (linux/fuse.h): libfuse cannot go on with a connection that
/// another process has begun, since it wants to see its INIT. What the kernel knows (inodes, open files) and what it
/// was not answered yet is in `state`, where a server that follows this one finds it.
class FuseSession {
 public:
  /// `device`: /dev/fuse, mounted; shared with the holder. All must outlive the session.
  FuseSession(const UniqueFd& device, SharedState& state, FuseFiles& files);
  /// Waits until the filesystem is gone, if it was started.
  ~FuseSession();
  /// What an earlier server did not answer is answered, then threads begin to serve. They end with the process, or when
  /// the filesystem is gone, which `gone` tells. `log` is told of errors that do not end it.
  void start(int threads, std::function<void()> gone, std::function<void(const std::string&)> log = {});

  /// One request as the kernel gives it, in a slot of the state: answered now or later; then the slot is free.
  void handle(char* slot);

 private:
  void serve(const std::function<void()>& gone, const std::function<void(const std::string&)>& log);
  void answer(char* slot, int error, std::span<const std::byte> body);
  template <typename Body>
  void answer(char* slot, const Body& body) {
    answer(slot, 0, std::as_bytes(std::span(&body, 1)));
  }
  void init(char* slot);
  void lookup(char* slot);
  void attributes(char* slot);
  void open(char* slot);
  void release(char* slot);
  void read(char* slot);
  void resend();

  const UniqueFd& device_;
  SharedState& state_;
  FuseFiles& files_;
  std::vector<std::thread> threads_;
};

/// A new connection: /dev/fuse, and the root of a filesystem over it that is attached nowhere.
struct FuseMount {
  UniqueFd device, root;
};
/// Needs root.
FuseMount mount_fuse();

}  // namespace dsec::registry
