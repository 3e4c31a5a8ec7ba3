#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "layers/build/project.h"
#include "layers/source.h"

namespace dsec::layers {

/// The files of a `copy` step and the directory of the layer that they go into.
struct CopyPlan {
  std::unique_ptr<Source> source;
  std::string to;
};

/// A folder's content goes to `to`; a file becomes `to`, or goes into it when that ends with '/'. What differs between
/// two checkouts of one commit is evened out: owner 0:0, modes 0644 or 0755 as git has them (unless the step gives
/// one), and one fixed time. Throws Error when `from` is missing or leads out of `project`.
CopyPlan plan_copy(const std::filesystem::path& project, const CopyStep& step);

}  // namespace dsec::layers
