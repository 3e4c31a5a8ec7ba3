#pragma once

#include <stdint.h>

#include "runners/guest/config.h"
#include "runners/guest/users.h"

namespace dsec::guest {

/// One command on its way into the sandbox, with the stack of the child that becomes it. Until then it shares the
/// keeper's memory, so this must stay where it is.
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

  int pid;              ///< of the command once it was cloned
  uint32_t on_its_way;  ///< the kernel clears it when the child has given up our memory, by its exec or its end
  Failure failure;      ///< set then if it does not run
  bool not_found;       ///< the failure is that there is no such program

  alignas(16) char usher_stack[2048];
  alignas(16) char stack[12288];
};

/// Starts bringing the command in and returns at once: what is inside could stop the child on its way. False with
/// entry.failure set when not even that worked.
bool begin_entry(Entry& entry);
bool is_on_its_way(const Entry& entry);

}  // namespace dsec::guest
