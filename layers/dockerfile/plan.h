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
#include "layers/dockerfile/run_mount.h"

namespace dsec::layers::dockerfile {

/// A RUN, its variables known.
struct RunCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> args;  ///< ARGs, which the command sees as environment
  bool host_network = false;
  std::vector<RunMount> mounts;
  std::string script;  ///< with an interpreter of its own, run instead of argv; empty: none
};
/// A COPY or ADD.
struct CopyFiles {
  struct Inline {
    std::string name, content;  ///< a here-document
  };
  bool unpack = false;               ///< ADD: local archives are unpacked
  std::vector<std::string> sources;  ///< paths or patterns
  std::vector<Inline> inlines;
  std::vector<std::string> urls;          ///< ADD: files that are fetched
  std::vector<std::string> repositories;  ///< ADD: of git, as sources that layers/git knows: "URL@REV"
  std::string checksum;                   ///< ADD: of the one URL, "sha256:…"; empty: whatever is there
  std::string to;                         ///< absolute
  bool into = false;                      ///< `to` is a directory, whether it exists or not
  std::optional<std::size_t> from_stage;  ///< index in Plan::stages
  std::string from_image;
  std::string owner;  ///< USER[:GROUP]; empty: 0:0
  std::optional<std::uint32_t> mode;
  std::vector<std::string> exclude;
  bool keep_owners = false;  ///< what comes from a stage or image keeps its owners, as for a mount
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
  std::string platform;                 ///< that it is for
  std::optional<std::size_t> on_stage;  ///< index in Plan::stages
  std::vector<Operation> operations;
  ImageConfig config;  ///< in the end
};

/// The stages that the target needs, each after those it stands on or copies from; the target is the last.
struct Plan {
  std::string origin;
  std::vector<Stage> stages;
};

/// An image or layer that the file names.
struct NamedImage {
  std::string name;      ///< as it is written, its variables replaced
  std::string platform;  ///< that it is wanted for
  Instruction by;        ///< FROM, COPY or RUN
};

/// The config of an image that FROM names; called once for each FROM of a stage that is needed. May throw.
using ImageConfigs = std::function<ImageConfig(const NamedImage& image)>;

/// Throws Error (Usage) as FILE:LINE: INSTRUCTION: text, for what is wrong and for what dsec does not support.
Plan make_plan(const Dockerfile& file, const Request& request, const std::string& platform, const ImageConfigs& images);

/// The images that the target's stages are made from, copy from or mount, "scratch" left out.
std::vector<NamedImage> images_of(const Dockerfile& file, const Request& request, const std::string& platform);

}  // namespace dsec::layers::dockerfile
