#pragma once

#include <list>
#include <optional>
#include <string>
#include <thread>

#include "core/base/unique_fd.h"
#include "layers/disk/disk_stack.h"
#include "layers/disk/nbd_connection.h"

namespace dsec::layers {

/// Serves a disk to its machine by NBD, and to dsec at a control socket (disk_protocol.h), from one thread: each
/// request of either is done before the next begins, so that a seal falls between two of the machine's. A second thread
/// compacts.
class DiskServer {
 public:
  /// Listening sockets; `control` one of whole messages.
  DiskServer(DiskStack& disk, UniqueFd control, UniqueFd nbd);
  ~DiskServer();

  /// Returns when it was asked to end, all that was written flushed. Throws Error.
  void run();

 private:
  struct Machine {
    UniqueFd socket;
    NbdConnection connection;
  };

  void accept_control();
  void accept_machine();
  /// False when the connection is over.
  bool attend_control(int socket);
  bool attend_machine(Machine& machine);
  static bool has_work(const Machine& machine);
  void begin_compaction();
  void end_compaction();

  DiskStack& disk_;
  const UniqueFd control_, nbd_, compacted_;
  std::list<UniqueFd> clients_;
  std::list<Machine> machines_;
  std::optional<Compaction> compaction_;
  std::thread compactor_;
  std::string compaction_error_;  ///< of the last one; written by its thread before it tells of its end
  std::size_t layers_looked_at_ = 0;
  bool asked_to_end_ = false;
  std::string buffer_;
};

}  // namespace dsec::layers
