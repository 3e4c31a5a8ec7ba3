#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runners/isolation/cgroups.h"

// What the files of CgroupHost and SandboxCgroups share.
namespace dsec::runners {

inline constexpr const char* kOurControllers[] = {"cpu", "memory", "pids"};

inline bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

struct CgroupHost::State {
  struct Hierarchy : CgroupHierarchy {
    bool of_classes = false;  ///< of v1: for the sandboxes that have a class
    std::string name;         ///< of our group in it
    UniqueFd mount;           ///< its root
    UniqueFd parent;          ///< our group in it, once made
    std::string unusable;     ///< why it cannot hold our group
    std::string undelegated;  ///< v2: why controllers could not be handed down to our group
  };

  std::string prefix;  ///< of the paths of our groups
  std::vector<Hierarchy> list;
  std::vector<CgroupHierarchy> shown;
  std::mutex mutex;

  Hierarchy* v2() {
    for (Hierarchy& each : list)
      if (each.v2) return &each;
    return nullptr;
  }
  /// Where a controller is, for sandboxes of the class: a kernel has it in one hierarchy at a time. In v1 those that
  /// have a class have their groups beside ours and not in it, since what counts is the weight at the root.
  Hierarchy* of(std::string_view controller, CpuClass cpu_class = CpuClass::Default) {
    for (Hierarchy& each : list) {
      const bool apart = !each.v2 && controller == "cpu" && cpu_class != CpuClass::Default;
      if (each.of_classes == apart && contains(each.controllers, controller)) return &each;
    }
    return nullptr;
  }

  /// Our group in it, made when missing; negative: it is unusable.
  int parent_of(Hierarchy& hierarchy) {
    if (!hierarchy.parent && hierarchy.unusable.empty()) make_parent(hierarchy);
    return hierarchy.parent.get();
  }
  void make_parent(Hierarchy& hierarchy);
  void delegate(Hierarchy& hierarchy, int top, const std::string& top_name);
  int make_group(Hierarchy& hierarchy, const std::string& id);
  /// A sandbox's group in it, with its limits. Throws Error.
  SandboxCgroups::Group make_limited_group(Hierarchy& hierarchy, const std::string& id, const Limits& limits);
  /// Whether a sandbox with these limits is made with a group in it.
  bool wanted(const Hierarchy& hierarchy, const Limits& limits);
  /// Whether one that has groups already is to have one in it.
  bool wanted_after_change(Hierarchy& hierarchy, const std::string& id, const Limits& limits);
  UniqueFd open_sandbox(Hierarchy& hierarchy, const std::string& id);
  /// The place for classes in a v1 hierarchy that has nothing else of ours: else a sandbox would be in two groups of
  /// one hierarchy.
  void add_classes();
};

/// The words of a file of a group; none when it cannot be read.
std::vector<std::string> words_in(int group, const char* file);
UniqueFd open_group(int at, const std::string& name);
/// The same open file, and so the same lock.
UniqueFd copy_of(const UniqueFd& fd);
/// Of ours, those that a group of the hierarchy has.
std::vector<std::string> controllers_of(const CgroupHierarchy& hierarchy, int group);

/// Writes the limits of these controllers that differ between the two. Throws Error naming the limit; what was written
/// before that stays.
void set_limits(const SandboxCgroups::Group& group, const Limits& from, const Limits& to);

/// Weight, of 100: 1000 for Latency; idle for Batch.
void set_class(int group, bool v2, CpuClass from, CpuClass to);

}  // namespace dsec::runners
