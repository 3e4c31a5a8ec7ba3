#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/model/sandbox_spec.h"
#include "layers/dockerfile/copy_origin.h"
#include "layers/source.h"

namespace dsec::layers {

/// What a step sees beside its layers, and nobody after it.
struct StepMounts {
  std::vector<BindMount> binds;
  std::vector<TmpfsMount> tmpfs;
  std::map<std::string, std::string> secret_env;
  std::vector<std::string> secrets;     ///< values that its output must not show
  std::function<void()> begun = [] {};  ///< called when the sandbox is made and the command does not run yet
  std::set<std::string> points;         ///< where the mounts are, as paths relative to the root, links resolved
};

/// Leaves out of a step's tree what came there by its mounts alone: mount points that the layers below do not have, and
/// folders above them that differ from what is below in nothing but their time.
class WithoutMountPoints final : public TreeSink {
 public:
  WithoutMountPoints(TreeSink& under, const std::set<std::string>& points, dockerfile::CopyOrigin& below);
  void entry(const Entry& entry) override;
  void data(std::string_view bytes) override;

 private:
  bool came_with_mounts(const Entry& entry);

  TreeSink& under_;
  dockerfile::CopyOrigin& below_;
  std::set<std::string> points_, above_;  // mount points, and all folders over them
  std::vector<Entry> waiting_;            // folders that count only when something in them does
};

}  // namespace dsec::layers
