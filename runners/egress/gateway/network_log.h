#pragma once

#include <cstdint>
#include <string>

#include "core/base/json.h"

namespace dsec::egress {

/// Writes the log of one sandbox: JSON Lines, each sealed by a checksum that continues the one before
/// (core/base/sealed_lines.h). Its end tells what it continues from, so that another process can go on with it.
class NetworkLog {
 public:
  /// `fd` is open for reading and appending, and outlives it. What was being written when its writer died is taken
  /// away. Throws Error when what is there is no such log.
  NetworkLog(int fd, const std::string& sandbox);
  /// Tells how many records were not written since that was last told.
  ~NetworkLog();
  NetworkLog(const NetworkLog&) = delete;
  NetworkLog& operator=(const NetworkLog&) = delete;

  /// `denied`: of these no more than half of the log is kept, so that they cannot hide what passed.
  void write(const Json& record, bool denied);
  /// So many could not be written, and that is told.
  void lose(std::uint64_t records);

 private:
  bool append(const Json& record, std::uint64_t limit);
  void tell_lost();

  const int fd_;
  std::uint64_t size_ = 0;
  std::uint32_t checksum_ = 0;
  std::uint64_t lost_ = 0, tell_at_ = 1;
};

}  // namespace dsec::egress
