#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "core/engine/home.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {

/// Makes a trajectory of what came from elsewhere. Everything is checked before it is written, so that whoever reads
/// the trajectory later can rely on it; nothing is seen of it before publish(), and nothing stays without. Throws Error
/// naming what is wrong.
class TrajectoryBuilder {
 public:
  /// The trajectory gets an id of its own: that of the header stays, as the one that its operations saw.
  TrajectoryBuilder(const Home& home, const TrajectoryHeader& header);
  ~TrajectoryBuilder();

  const std::string& id() const noexcept { return id_; }
  std::uint64_t operations() const noexcept { return begun_; }

  /// The next one; its `seq` must be that, or 0.
  void started(Operation operation);
  /// Its files must be there.
  void done(const Operation& operation);
  /// Both. Output that is too long for the log goes beside it.
  void add(Operation operation);
  /// Appends to a file of the operation that was started last, or to the network log.
  void append_file(const std::string& name, std::string_view data);
  std::uint64_t files() const noexcept { return file_count_; }

  /// Puts it among the others, on the disk.
  void publish();

 private:
  void need(const std::string& name, std::uint64_t bytes);
  void close_file();

  const Home& home_;
  const std::string id_;
  TempDirectory stage_;
  std::unique_ptr<TrajectoryWriter> writer_;
  std::uint64_t begun_ = 0, file_count_ = 0;
  std::set<std::string> op_ids_;
  std::vector<bool> ended_;
  std::map<std::string, std::uint64_t> files_;  ///< bytes of those that no operation has named yet
  std::string open_name_;
  UniqueFd open_file_;
};

/// Throws Error (Usage) unless what an operation says of itself is what readers of its kind rely on.
void check_operation(const Operation& operation);

}  // namespace dsec::engine
