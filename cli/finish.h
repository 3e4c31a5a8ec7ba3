#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/output.h"
#include "core/engine/engine.h"

namespace dsec::cli {

class Invocation;

/// Starts the main command of a sandbox just made; when that fails the sandbox is removed again.
std::unique_ptr<engine::ExecStream> start_or_remove(engine::Engine& engine, const std::string& id,
                                                    const ExecSpec& spec);

/// After a foreground command: says on standard error what its own output cannot tell (it was not found, it ran out of
/// time or memory, the sandbox was ended), writes the status file and sets the exit code.
void finish(Invocation& call, const ExecResult& result, const std::vector<std::string>& argv,
            const std::string& sandbox_reason, const std::string& status_file);

/// One name as the whole result: a line, or {"KEY": name}.
void tell_id(Output& out, const char* key, const std::string& id);

}  // namespace dsec::cli
