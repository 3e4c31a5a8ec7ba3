#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/base/unique_fd.h"

namespace dsec::runners {

/// Something that QEMU tells unasked.
struct QmpEvent {
  std::string name;  ///< "STOP", "SHUTDOWN", …
  std::string data;  ///< JSON
};

/// A connection to QEMU's monitor (QMP). One thread. Nothing that the other end sends or leaves out makes a call take
/// longer than its time: after the first Error that is no refusal the connection is of no use any more.
class Qmp {
 public:
  using Time = std::chrono::milliseconds;
  /// Reads the greeting and leaves the negotiation. Throws Error.
  Qmp(UniqueFd socket, Time patience);

  /// "7.2.22".
  const std::string& version() const noexcept { return version_; }
  /// The answer's "return". A refusal throws Error with QEMU's own words. `fd` goes with the command.
  Json execute(const std::string& command, const Json& arguments, Time patience, int fd = -1);
  Json execute(const std::string& command, Time patience);
  /// The next event, whether it has come already or not; empty when there is none for so long.
  std::optional<QmpEvent> next_event(Time patience);

 private:
  Json receive(std::chrono::steady_clock::time_point until);
  std::optional<std::string> take_line();
  void keep(const Json& event);
  [[noreturn]] void lose(const std::string& why);

  UniqueFd socket_;
  std::string received_;
  std::deque<QmpEvent> events_;
  std::string version_;
  std::uint64_t last_id_ = 0;
};

}  // namespace dsec::runners
