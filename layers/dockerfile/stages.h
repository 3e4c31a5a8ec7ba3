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
  std::string platform;                 ///< that it is for: "linux/amd64"
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

/// The stages and images that the flags of a COPY or RUN name, as they are written.
std::vector<std::string> named_by(const Instruction& instruction);

/// Whether this host runs programs of `platform`, when its own is `host`.
bool runs_on(const std::string& platform, const std::string& host);

}  // namespace dsec::layers::dockerfile
