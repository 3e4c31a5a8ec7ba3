#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/json.h"
#include "core/model/operation_context.h"
#include "core/model/sandbox_spec.h"
#include "core/model/session_spec.h"

namespace dsec {

/// What a trajectory begins with; see man/dsec-trajectory.5.md, which is the reference of all that follows.
struct TrajectoryHeader {
  struct Layer {
    Digest digest;     ///< of the manifest
    std::string name;  ///< "base/debian:12"
    bool operator==(const Layer&) const = default;
  };
  std::string id;  ///< of the sandbox
  std::string environment;
  std::vector<Layer> layers;  ///< bottom to top
  SandboxSpec spec;
  std::chrono::system_clock::time_point created;
  std::string dsec;    ///< release that made it
  std::string source;  ///< what it was imported from; empty: recorded here
  bool operator==(const TrajectoryHeader&) const = default;
};

/// One recorded operation on a sandbox.
struct Operation {
  enum class Outcome { Ok, Failed, Interrupted };

  /// A file beside the log; of it the first `bytes` count.
  struct Part {
    std::string name;
    std::uint64_t bytes = 0;
    bool operator==(const Part&) const = default;
  };
  /// The tar stream that was brought in or out.
  struct Content {
    std::string name;  ///< empty: too large to be kept
    std::uint64_t bytes = 0;
    std::string sha256;  ///< 64 hex digits
    bool operator==(const Content&) const = default;
  };
  /// Of contents of the layers that are loaded while they are read: how much there is, and had come by then.
  struct Loaded {
    std::uint64_t bytes = 0, fetched = 0;
    bool operator==(const Loaded&) const = default;
  };
  struct Done {
    std::chrono::system_clock::time_point time;
    std::chrono::microseconds duration{};
    Outcome outcome = Outcome::Ok;
    std::string result = "{}";                         ///< canonical JSON, by kind
    std::string stdout_data, stderr_data, stdin_data;  ///< what stands in the log
    std::vector<Part> output;                          ///< parts of the spool when the output is too long for the log
    std::optional<Part> stdin_file;
    std::optional<Content> content;
    std::optional<Loaded> on_demand;
    bool operator==(const Done&) const = default;
  };

  std::uint64_t seq = 0;
  std::string op_id;  ///< "#SEQ" when the caller gave none
  std::string kind;
  Origin origin = Origin::Sdk;
  std::chrono::system_clock::time_point started;
  std::string exec_id;         ///< of commands
  std::string request = "{}";  ///< canonical JSON, by kind
  std::optional<Done> done;    ///< none: it runs, or nobody lived to record its end

  bool named() const { return !op_id.starts_with('#'); }
  bool operator==(const Operation&) const = default;
};

std::string_view to_string(Operation::Outcome outcome);

/// Lines of the log without their checksum and newline. Their inverses throw Error (Usage) naming what is wrong.
std::string to_line(const TrajectoryHeader& header);
std::string started_line(const Operation& operation);
std::string done_line(const Operation& operation);
TrajectoryHeader trajectory_header_from(const Json& json);
/// Of a `started` record: all but `done`.
Operation operation_from(const Json& json);
/// Of a `done` record.
Operation::Done done_from(const Json& json);

/// What is recorded of a command: what the client alone decides (size of the terminal, whether it waits) is left out,
/// so that a retry is the same request.
Json exec_request(const ExecSpec& spec);
Json session_open_request(const SessionSpec& spec);
Json session_request(const std::string& session, const SessionCommand& command);
/// The command that a recorded request asks for.
ExecSpec exec_spec_of(const Operation& operation);
/// Likewise of sessions; `session` becomes the one that the command was for.
SessionSpec session_spec_of(const Operation& operation);
SessionCommand session_command_of(const Operation& operation, std::string& session);
/// Of a recorded command; Cause::Unknown when no end of it is recorded.
ExecResult exec_result_of(const Operation& operation);
Json exec_result_json(const ExecResult& result);
/// Of the `result` member of a record or of commands.jsonl.
ExecResult exec_result_from(const Json& json);

}  // namespace dsec
