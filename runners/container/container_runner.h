#pragma once

#include <filesystem>
#include <memory>

#include "core/base/unique_fd.h"
#include "core/engine/home.h"
#include "core/engine/runner.h"

namespace dsec::runners {

/// Sandboxes as processes of this kernel in namespaces of their own, each with a keeper; man/dsec-keeper.7.md tells how
/// the parts hold together. Needs root. All calls may be made from several threads.
/// `dsec` is the program whose `rm` a keeper executes at the end of a detached sandbox that is not to stay; empty: gc
/// removes it.
std::unique_ptr<engine::Runner> make_container_runner(const engine::Home& home, const std::filesystem::path& dsec = {});

/// cgroup.procs of the group in which the keepers of a home live, for other programs that outlive their caller: writing
/// "0" moves the writer there. Throws Error.
UniqueFd open_keepers_procs(const engine::Home& home);

}  // namespace dsec::runners
