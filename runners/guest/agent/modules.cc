#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr const char* kGroups[] = {"boot", "vsock", "pmem", "net", "egress"};

// Calls visit(name) for each line; false at the first that does.
template <typename Visit>
bool each_line(Buffer& text, Visit visit) {
  char* at = text.data;
  char* const end = text.data + text.size;
  while (at < end) {
    char* line = at;
    while (at < end && *at != '\n') ++at;
    *at++ = '\0';
    if (*line && !visit(line)) return false;
  }
  return true;
}

}  // namespace

bool load_modules(const char* group, Failure& failure) {
  Buffer names = {};
  if (!read_small(agent.modules, group, names)) {
    names.clear();
    return true;  // this kernel has it built in
  }
  const bool loaded = each_line(names, [&](const char* name) {
    const long file = open_at(agent.modules, name, O_RDONLY | O_CLOEXEC);
    // A text of the failure outlives the list.
    const long done = file < 0 ? file : sys(__NR_finit_module, file, "", 0);
    if (file >= 0) close_fd(static_cast<int>(file));
    if (done >= 0 || done == -EEXIST) return true;
    agent.reason.size = 0;
    agent.reason.append(name, strlen(name) + 1);
    failure.set("load the module", agent.reason.data, done);
    return false;
  });
  names.clear();
  return loaded;
}

// They lie in memory, which is the sandbox's from now on.
void forget_modules() {
  if (agent.modules < 0) return;
  for (const char* group : kGroups) {
    Buffer names = {};
    if (read_small(agent.modules, group, names))
      each_line(names, [](const char* name) { return sys(__NR_unlinkat, agent.modules, name, 0), true; });
    names.clear();
  }
  close_fd(agent.modules);
  agent.modules = -1;
}

}  // namespace dsec::guest
