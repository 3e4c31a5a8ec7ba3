#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/json.h"
#include "core/model/environment_spec.h"
#include "core/model/function_spec.h"
#include "core/model/layer_ref.h"

namespace dsec::layers {

/// Where something stands in dsec.yaml, from 1; no two are different, so that it does not count when steps are
/// compared.
struct Place {
  int line = 0, column = 0;
  bool operator==(const Place&) const { return true; }
};

struct RunStep {
  std::vector<std::string> argv;  ///< a string of dsec.yaml stands as {"/bin/sh", "-c", …}
  std::string workdir, user;      ///< empty: what earlier steps set
  std::map<std::string, std::string> env;
  NetworkWish network;
  bool operator==(const RunStep&) const = default;
};
struct CopyStep {
  std::string from;  ///< below the project
  std::string to;    ///< absolute; with a trailing '/' a directory that `from` goes into
  std::optional<std::uint32_t> mode;
  Place at;  ///< of `from`
  bool operator==(const CopyStep&) const = default;
};
struct GitStep {
  std::string url, rev, to = "/workspace", history = "past";
  Place at{};  ///< of `url`
  bool operator==(const GitStep&) const = default;
};
struct EnvStep {
  std::map<std::string, std::string> values;
  bool operator==(const EnvStep&) const = default;
};
struct WorkdirStep {
  std::string path;
  bool operator==(const WorkdirStep&) const = default;
};
struct UserStep {
  std::string user;
  bool operator==(const UserStep&) const = default;
};
using Step = std::variant<RunStep, CopyStep, GitStep, EnvStep, WorkdirStep, UserStep>;

/// "run: pip install …", for progress and messages; one line, at most 60 characters.
std::string brief(const Step& step);
/// The canonical form that a step's cache key is made of.
Json to_json(const Step& step);

/// The label of a built layer in the store that holds LayerRecipe::digest() of the entry it was built from.
inline constexpr const char* kRecipeLabel = "dsec.recipe";

/// An entry of `layers`.
struct LayerRecipe {
  LayerName name;
  std::string tag = "latest";
  std::string from;  ///< a source with the paths of files as they were written; empty when made by steps alone
  std::string to, history, platform, compress;
  std::optional<LayerRef> on;
  std::vector<Step> steps;
  std::vector<std::string> scrub, keep;
  std::map<std::string, std::string> labels;
  int line = 0;   ///< in dsec.yaml
  Place from_at;  ///< of `from`

  std::string ref() const { return name.str() + ":" + tag; }
  /// Of everything here that decides what is built, the line not being part of it.
  Digest digest() const;
};

/// A layer that dsec.yaml names.
struct LayerReference {
  std::string by;  ///< the layer ("kind/name:tag") or environment that names it
  LayerRef ref;
  Place at;
};

/// A dsec.yaml.
struct Project {
  std::filesystem::path file, directory;
  std::map<std::string, std::string> args;  ///< the values that ${NAME} was replaced by
  std::vector<LayerRecipe> layers;          ///< in the order of the file
  std::vector<EnvironmentSpec> environments;
  std::vector<FunctionSpec> functions;
  std::vector<LayerReference> references;  ///< what layers stand on and environments are made of

  const LayerRecipe* layer(const LayerRef& ref) const;  ///< null when the project makes no such layer
  const EnvironmentSpec* environment(std::string_view name) const;
  const FunctionSpec* function(std::string_view name) const;

  /// Reads and checks the whole file; ${NAME} and ${NAME:-default} take values from `args`, and $${ stands for ${.
  /// Throws Error (Usage) whose chain lists every problem as FILE:LINE:COLUMN: text.
  static Project load(const std::filesystem::path& file, const std::map<std::string, std::string>& args);
  static Project parse(std::string_view yaml, const std::filesystem::path& file,
                       const std::map<std::string, std::string>& args);
};

/// Whether what follows this scheme of a source is a path: "tar", "dir", "oci-archive", …
bool is_file_scheme(std::string_view scheme);

/// Throws Error (Usage) that lists every file and repository that the recipes name and that is not there, with its
/// place. Not part of reading: an environment can be run where its layers' files are not.
void check_files(const Project& project, const std::vector<const LayerRecipe*>& recipes);

}  // namespace dsec::layers
