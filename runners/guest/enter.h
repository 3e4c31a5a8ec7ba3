#pragma once

#include <stdint.h>

#include "runners/guest/config.h"
#include "runners/guest/users.h"

namespace dsec::guest {

/// One command on its way into the sandbox, with the stacks of the two children that bring it there. They share the
/// keeper's memory, so this must stay where it is until finished() is known, which the end of `helper` tells.
struct Entry {
  const Config* config;
  int init_pidfd;
  int cgroup;                ///< of this command, or of the sandbox
  int input, output, error;  ///< become 0, 1, 2
  int late_procs;            ///< cgroup.procs of `cgroup` when it can only be joined last; -1: it was cloned into
  int place, control;        ///< of a session's shell, become 8 and 9; -1: none
  int terminal;              ///< that a session's shell controls; -1: none
  bool tty, make_workdir;
  char** argv;
  char** env;
  const char* path;  ///< value of PATH
  const char* workdir;
  User user;

  int helper;       ///< child that waits until the command runs; the keeper reaps it
  int pid;          ///< of the command once it was cloned, 0 before
  Failure failure;  ///< set when `helper` has ended without the command running
  bool not_found;   ///< the failure is that there is no such program

  alignas(16) char helper_stack[2048];
  alignas(16) char stack[12288];
};

/// Starts bringing the command in and returns at once: what is inside could stop the child on its way. False with
/// entry.failure set when not even that worked.
bool begin_entry(Entry& entry);

}  // namespace dsec::guest
