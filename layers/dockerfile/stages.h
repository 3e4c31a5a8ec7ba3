#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layers/dockerfile/dockerfile.h"
#include "layers/dockerfile/request.h"

namespace dsec::layers::dockerfile {

/// A stage as the file has it: what its FROM means is known, its instructions are not looked into.
struct StageText {
  std::string name;  ///< empty: it has none
  Instruction from;
  std::string image;                    ///< what it begins with, when that is no stage
  std::optional<std::size_t> on_stage;  ///< index of an earlier stage
  std::vector<Instruction> instructions;
};

/// The stages of a file and which of them the target needs.
struct StageList {
  std::vector<StageText> stages;    ///< in the order of the file
  std::vector<std::size_t> needed;  ///< in that order; the last is the target
  std::map<std::string, std::string> global_args, platform_args;
  std::vector<std::string> declared;  ///< ARGs before the first FROM

  /// The earlier stage that `text` names, by name or number; `before` is an index.
  std::optional<std::size_t> find(const std::string& text, std::size_t before) const;
};

/// Throws Error (Usage) for a FROM that is wrong, for a target that no stage has, and for a circle.
StageList list_stages(const Dockerfile& file, const Request& request, const std::string& platform);

/// The value of the flag of a COPY that names a stage or image; empty: it copies from the context.
std::string copied_from(const Instruction& instruction);

}  // namespace dsec::layers::dockerfile
