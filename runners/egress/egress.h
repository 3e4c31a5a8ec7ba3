#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>

#include "core/base/resident.h"
#include "core/engine/runner.h"
#include "core/model/network_policy.h"

namespace dsec::runners {

/// The names of files in a sandbox's directory: the policies that hold; the certificate of the authority that
/// intercepts its TLS.
inline constexpr char kNetworkFile[] = "network.json", kCaFile[] = "ca.pem";
/// Where the sandbox finds the latter.
inline constexpr char kCaInside[] = "/etc/dsec-ca.pem";

/// Gives sandboxes with a policy their network, by the gateway of a DSEC_HOME, which is started when it is needed.
class Egress {
 public:
  /// `open_procs` opens cgroup.procs of the group that the gateway shall live in.
  Egress(std::filesystem::path run_directory, std::function<UniqueFd()> open_procs)
      : run_(std::move(run_directory)), open_procs_(std::move(open_procs)) {}

  /// Throws Error (Usage) naming what of `plan` cannot be honoured here: a secret that cannot be read.
  void check(const NetworkPlan& plan) const;
  /// For a new sandbox: `pidfd` is its PID 1's. The log is also linked into `trajectory`, unless that is empty. Throws
  /// Error; then it has no network.
  void attach(const std::filesystem::path& directory, const std::filesystem::path& trajectory, const NetworkPlan& plan,
              int pidfd) const;
  /// Attaches again what a gateway that is gone had; nothing for a sandbox without a policy. `open_init` gives the
  /// pidfd.
  void ensure(const std::filesystem::path& directory, const std::function<UniqueFd()>& open_init) const;
  /// Replaces the plan at once. Throws Error (Usage) when a secret that is new in it cannot be read; then nothing is
  /// done.
  void set(const std::filesystem::path& directory, const NetworkPlan& plan,
           const std::function<UniqueFd()>& open_init) const;
  /// Ends a gateway that nobody uses.
  void release() const;
  engine::NetworkReport report(const std::filesystem::path& directory) const;

 private:
  Resident gateway() const;
  UniqueFd start_gateway() const;
  Json ask(const Json& request, const std::vector<int>& descriptors = {}) const;
  void attach_plan(const std::filesystem::path& directory, const NetworkPlan& plan, int pidfd) const;

  const std::filesystem::path run_;
  const std::function<UniqueFd()> open_procs_;
};

/// What a sandbox with a policy finds inside: the gateway as its name server, and as a proxy for programs that want
/// one.
std::string egress_resolv_conf();
std::vector<std::string> egress_environment(const std::string& hostname, const NetworkPlan& plan);

/// PEM of the authority that intercepts a sandbox's TLS; empty when there is none.
std::string read_authority(const std::filesystem::path& directory);

/// The plan that holds for a sandbox; empty when it has no policy.
std::optional<NetworkPlan> read_network_plan(const std::filesystem::path& directory);

}  // namespace dsec::runners
