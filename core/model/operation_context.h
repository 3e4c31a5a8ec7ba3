#pragma once

#include <string>
#include <string_view>

namespace dsec {

/// Who asked for an operation, as its record tells.
enum class Origin { Cli, Sdk, Session, Replay, Task, Gateway };
/// "cli", "sdk", …
std::string_view to_string(Origin origin);
/// Throws Error (Usage) for another word.
Origin origin_from(std::string_view text);

/// How an operation on a sandbox is recorded.
struct OperationContext {
  /// Chosen by the caller, see check_op_id(). Given again it returns what is recorded and runs nothing. Empty: a retry
  /// is a new operation.
  std::string op_id;
  Origin origin = Origin::Sdk;
  bool recorded = true;  ///< false: it only looks whether something is there
  bool operator==(const OperationContext&) const = default;
};

/// Throws Error (Usage) unless `op_id` is empty or 1 to 128 characters of [A-Za-z0-9._:/@+-].
void check_op_id(std::string_view op_id);

}  // namespace dsec
