#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/engine/runner.h"
#include "runners/container/launch.h"
#include "runners/isolation/cgroups.h"
#include "runners/isolation/id_map.h"
#include "runners/protocol/wire.h"

namespace dsec::runners {

/// Where a request names no descriptor.
inline constexpr std::uint32_t kNoDescriptor = 0xffffffff;

/// Descriptors that go along with a request, named in it by their place.
class DescriptorList {
 public:
  std::uint32_t add(int fd);
  std::uint32_t keep(UniqueFd fd);
  std::span<const int> all() const { return fds_; }

 private:
  std::vector<int> fds_;
  std::vector<UniqueFd> owned_;
};

/// What a keeper is told of the sandbox that it is to start, and what of it the sandbox itself does not say.
struct StartRequest {
  engine::RunnerRequest& sandbox;
  const SandboxCgroups& cgroups;
  std::uint32_t flags;  ///< of wire::StartFlags: those that depend on the backend
  std::string hostname;
  std::uint64_t capabilities;  ///< that commands may have
  std::vector<std::string> environment;
  std::string workdir, user;
  IdMap map;
  std::shared_ptr<const UniqueFd> keeper_namespace;
  int user_namespace;  ///< -1: the host's
  int program;         ///< dsec-init
  bool counts_kills;   ///< of the kernel for lack of memory are told, which a guest does for itself
  std::vector<std::string> masked_paths, read_only_paths;
  std::filesystem::path dsec;        ///< removes the sandbox at its end, where that is asked for; may be empty
  std::vector<std::string> machine;  ///< what is executed as PID 1 of a machine; empty: dsec-init, of a container
  int machine_errors = -1;           ///< where that writes its errors to
  int machine_memory = -1;           ///< what it gets where it opens machine_memory_path for writing; -1: nothing
  std::string machine_memory_path = {};
};

/// Throws Error.
void send_start(KeeperLaunch& keeper, const StartRequest& request);

/// Throws Error: what the keeper says, where it could not begin or has given up already.
void send_request(KeeperLaunch& keeper, wire::Type type, std::string_view text, std::span<const int> descriptors);

/// The pid of the keeper, whose sandbox has its PID 1 now. Throws Error.
int await_start(KeeperLaunch& keeper);

}  // namespace dsec::runners
