#pragma once

#include <map>
#include <string>

#include "core/engine/compose_spec.h"

namespace dsec::cli {

class Invocation;

/// An environment of a dsec.yaml as a request: its settings from the file, its layers as dsec.lock beside it pins them,
/// or by tag while there is no lock. Throws Error (Usage) with near names.
engine::SandboxRequest request_of_environment(const std::string& name, const std::string& file,
                                              const std::map<std::string, std::string>& args);

/// Throws Error (Usage) that lists, with their places in the file, the layers of the environment that neither the file
/// makes nor the store has; nothing when there are none.
void refuse_dangling_references(Invocation& call, const std::string& name, const std::string& file,
                                const std::map<std::string, std::string>& args);

/// Whether the file exists and describes an environment of this name.
bool has_environment(const std::string& name, const std::string& file, const std::map<std::string, std::string>& args);

}  // namespace dsec::cli
