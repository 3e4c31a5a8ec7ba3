#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace dsec::engine {

/// What a sandbox asked of the network, as the egress gateway writes it down; man/dsec-network.7.md is the reference.
/// The file has this name in the directory of the sandbox and, linked, in that of its trajectory, which outlives it.
inline constexpr char kNetworkLog[] = "network.jsonl";

/// One lookup, connection or flow, or (`lost`) the news that some were not written down.
struct NetworkEvent {
  std::chrono::system_clock::time_point time;  ///< when it ended or was answered
  std::chrono::microseconds duration{0};       ///< before that
  std::string verdict;                         ///< "allow", "deny", "fail"
  std::string protocol;                        ///< "dns", "tcp", "tls", "http", "udp"
  std::string host, address;                   ///< normal name; address that was connected to, else the one named
  std::uint16_t port = 0;
  std::uint64_t sent = 0, received = 0;  ///< bytes from and to the sandbox
  std::uint64_t requests = 0;            ///< of HTTP
  std::vector<std::string> http;         ///< each of them: "GET /path", without the query
  bool intercepted = false;              ///< its TLS was ended by the gateway
  std::string reason, phase;
  std::uint64_t lost = 0;  ///< not 0: so many records are missing here, and of the rest only `time` is set
};

/// Null for the header. Members that are not known are ignored.
std::optional<NetworkEvent> network_event_from(const Json& json);

struct NetworkLogContents {
  std::vector<NetworkEvent> events;  ///< as they were written: in order of their ends
  std::string damage;                ///< where the log is damaged and reading stopped; empty: nowhere
};
/// The log in the directory of a trajectory (or sandbox); empty when there is none.
NetworkLogContents read_network_log(const std::filesystem::path& directory);

/// Whole lines from byte `from` on, at most about 1 MiB; empty when there are no more.
std::string read_network_lines(const std::filesystem::path& directory, std::uint64_t from);

}  // namespace dsec::engine
