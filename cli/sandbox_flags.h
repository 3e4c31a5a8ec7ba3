#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/compose_spec.h"

namespace dsec::cli {

class Command;
class Invocation;

/// The flags that say how a sandbox is made: those of run and create.
struct SandboxFlags {
  std::vector<std::string> what;  ///< one environment of dsec.yaml, or layers
  std::string file;
  std::vector<std::string> args;  ///< NAME=VALUE for ${NAME} in the file
  std::vector<std::string> registries;
  std::string base, workspace;
  std::vector<std::string> toolkits;
  std::string name, backend, network, userns, hostname, workdir, user, user_data;
  std::optional<std::string> entrypoint;
  std::vector<std::string> env, env_files, binds, devices, labels, allow, deny, inject;
  std::string cpu_class, pmem;
  bool intercept_tls = false;
  std::optional<double> cpus;
  std::optional<std::uint64_t> memory, pids, disk, output_limit;
  std::optional<std::chrono::milliseconds> lifetime, idle, idle_pause;
  bool read_only = false, accept_conflicts = false, on_demand = false;
  std::optional<bool> offline;
};

void declare(Command& command, SandboxFlags& flags);

/// Takes the environment from dsec.yaml and dsec.lock, or the layers from the store, and puts the flags over it.
SandboxSpec compose(Invocation& call, const SandboxFlags& flags);

/// The flags that say how one command runs: those of run, exec and shell.
struct ExecFlags {
  std::optional<bool> interactive, tty;
  bool detach = false;
  std::optional<std::chrono::milliseconds> timeout;
  std::string op_id;
};

void declare(Command& command, ExecFlags& flags);

/// --op-id of what is recorded.
void declare_op_id(Command& command, std::string& op_id);
/// Throws Error (Usage) for a name that no operation can have.
OperationContext operation_context(const std::string& op_id);

/// A TTY where there is one and standard output is not to be parsed; input from the terminal or with -i.
void apply(const ExecFlags& flags, bool json, ExecSpec& spec);

/// "NAME=value", or "NAME" for its value here; unset: no variable.
void add_variable(std::vector<std::string>& env, const std::string& text);
/// A line each: "NAME=value", "NAME", a comment after '#', or nothing.
void add_variables_of_file(std::vector<std::string>& env, const std::string& path);
/// "KEY=VALUE" or "KEY".
std::map<std::string, std::string> parse_labels(const std::vector<std::string>& texts);
/// "HOST:PATH[:ro|rw]"; a relative host path is taken from here, and must exist.
BindMount parse_bind(const std::string& text);

}  // namespace dsec::cli
