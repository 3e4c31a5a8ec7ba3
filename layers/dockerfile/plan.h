#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/model/layer_manifest.h"
#include "layers/dockerfile/dockerfile.h"
#include "layers/dockerfile/request.h"

namespace dsec::layers::dockerfile {

/// A RUN, its variables known.
struct RunCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> args;  ///< ARGs, which the command sees as environment
  bool host_network = false;
};
/// A COPY or ADD.
struct CopyFiles {
  struct Inline {
    std::string name, content;  ///< a here-document
  };
  bool unpack = false;               ///< ADD: local archives are unpacked
  std::vector<std::string> sources;  ///< paths or patterns
  std::vector<Inline> inlines;
  std::string to;                         ///< absolute
  bool into = false;                      ///< `to` is a directory, whether it exists or not
  std::optional<std::size_t> from_stage;  ///< index in Plan::stages
  std::string from_image;
  std::string owner;  ///< USER[:GROUP]; empty: 0:0
  std::optional<std::uint32_t> mode;
  std::vector<std::string> exclude;
};
/// A WORKDIR, which is made where it does not exist.
struct MakeDirectory {
  std::string path;
};
struct Operation {
  Instruction instruction;  ///< for messages
  ImageConfig config;       ///< as it is before it
  std::variant<RunCommand, CopyFiles, MakeDirectory> work;
};

struct Stage {
  std::string name;  ///< empty: it has none
  Instruction from;
  std::string image;                    ///< what it begins with, when that is no stage; "scratch": nothing
  std::optional<std::size_t> on_stage;  ///< index in Plan::stages
  std::vector<Operation> operations;
  ImageConfig config;  ///< in the end
};

/// The stages that the target needs, each after those it stands on or copies from; the target is the last.
struct Plan {
  std::string origin;
  std::vector<Stage> stages;
};

/// The config of an image that FROM names; called once for each FROM of a stage that is needed. May throw.
using ImageConfigs = std::function<ImageConfig(const std::string& image, const Instruction& from)>;

/// Throws Error (Usage) as FILE:LINE: INSTRUCTION: text, for what is wrong and for what dsec does not support.
Plan make_plan(const Dockerfile& file, const Request& request, const std::string& platform, const ImageConfigs& images);

/// The images that the target's stages are made from or copy from, "scratch" left out, each with the instruction that
/// names it.
std::vector<std::pair<std::string, Instruction>> images_of(const Dockerfile& file, const Request& request,
                                                           const std::string& platform);

}  // namespace dsec::layers::dockerfile
