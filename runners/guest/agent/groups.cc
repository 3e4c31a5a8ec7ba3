#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace dsec::guest {

bool make_groups(Failure& failure) {
  make_directory("/sys/fs/cgroup/machine", 0755);
  static constexpr const char* kControls[] = {"/sys/fs/cgroup/cgroup.subtree_control",
                                              "/sys/fs/cgroup/machine/cgroup.subtree_control"};
  static constexpr const char* kWishes[] = {"+memory", "+pids", "+cpu", "+io"};
  for (const char* file : kControls) {
    const long control = open_at(-100, file, O_WRONLY | O_CLOEXEC);
    if (control < 0) return failure.set("open", "cgroup.subtree_control", control), false;
    // One by one: a kernel may lack some. A limit that needs one is refused later.
    for (const char* wish : kWishes) write_fd(static_cast<int>(control), wish, strlen(wish));
    close_fd(static_cast<int>(control));
  }
  const long made = make_directory("/sys/fs/cgroup/machine/sandbox", 0755);
  const long parent = open_at(-100, "/sys/fs/cgroup/machine", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const long group = open_at(-100, "/sys/fs/cgroup/machine/sandbox", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (made < 0 || parent < 0 || group < 0)
    return failure.set("make", "the control group", made < 0 ? made : group), false;
  agent.parent_group = static_cast<int>(parent);
  agent.group = static_cast<int>(group);
  return true;
}

// "FILE=VALUE" each.
bool set_limits(wire::Reader& reader, Failure& failure) {
  Strings limits = {};
  if (!limits.read(reader)) return unreadable(failure);
  for (uint32_t i = 0; i < limits.count; ++i) {
    char* const name = limits.items[i];
    char* value = name;
    while (*value && *value != '=' && *value != '/') ++value;
    if (*value != '=') return failure.set("understand the limit", name, -EINVAL), false;
    *value = '\0';
    const long set = write_group_file(agent.group, name, value + 1);
    if (set < 0) return failure.set("set the limit", name, set), false;
  }
  limits.clear();
  return true;
}

}  // namespace dsec::guest
