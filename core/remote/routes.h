#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dsec::remote {

/// What can be asked of an edge. openapi.yaml in this folder is the contract, man/dsec-wire.7.md tells it in words, and
/// both ends work from this one table: a test compares it with the contract.
enum class Call {
  Health,
  Metrics,
  Create,
  List,
  Inspect,
  Remove,
  Update,
  Wait,
  Stop,
  Pause,
  Resume,
  Exec,
  Commands,
  Attach,
  Signal,
  OpenSession,
  Sessions,
  RunInSession,
  CloseSession,
  Logs,
  Stats,
  Changes,
  ChangeStat,
  ChangeContent,
  Snapshot,
  Fork,
  CopyOut,
  CopyIn,
  Watch,
  Http,
  Connect,
  Screenshot,
  ScreenInput,
  ConnectScreen,
  Network,
  SetNetwork,
  NetworkLog,
  Recorded,
  Trajectories,
  Trajectory,
  RemoveTrajectory,
  Layer,
};

struct Route {
  Call call;
  const char* name;  ///< operationId of the contract; in logs and metrics
  const char* method;
  const char* path;  ///< with "{name}" for one segment
};

/// All, in the order of the enumeration.
std::span<const Route> routes();
const Route& route_of(Call call);

/// By name of the path, decoded.
using Parameters = std::map<std::string, std::string>;

/// Path and query of a call, escaped. Every parameter of the path must be there; the others become its query.
std::string target_of(Call call, const Parameters& parameters);

struct Found {
  const Route* route = nullptr;  ///< null: none has this path
  bool method_differs = false;   ///< the path is one, asked for with another method
  Parameters parameters;         ///< of path and query, decoded
};
/// What "/v1/sandboxes/x?force=true" is. An escape that is none is taken as it stands.
Found find_route(std::string_view method, std::string_view target);

}  // namespace dsec::remote
