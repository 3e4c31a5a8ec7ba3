#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "core/base/digest.h"

namespace dsec::layers {

/// The granularity in which data is verified when it is loaded on demand; part of the format (dsec-layer(5)).
constexpr std::uint64_t kDataChunk = 64 << 10;

/// Takes the digests of a file while another process still appends to it, so that it is read while it is in memory
/// and nobody waits for it afterwards.
class DataHash {
 public:
  /// `fd` must outlive the object.
  explicit DataHash(int fd);
  ~DataHash();

  struct Result {
    Digest whole;
    std::string chunks;  ///< 32 bytes of sha256 for each kDataChunk, the last one shorter
  };
  /// The file is complete: waits for the rest. Throws Error.
  Result finish();

 private:
  void run();
  void hash_until(std::uint64_t end);

  int fd_;
  std::uint64_t position_ = 0;
  std::string buffer_;
  Sha256 whole_;
  std::string chunks_;
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool complete_ = false, abandoned_ = false;
  std::thread thread_;
};

}  // namespace dsec::layers
