#pragma once

#include <cstddef>
#include <cstdint>

/// Operations on one control group through a descriptor of its directory: for dsec and for the static programs that
/// guard a sandbox, so nothing here throws or allocates. Functions return 0 (or the value asked for) or a negative
/// errno.
namespace dsec::runners::cgroup {

int write(int group, const char* file, const char* text) noexcept;
/// Reads at most `size` - 1 bytes and ends them with NUL; returns how many.
long read(int group, const char* file, char* buffer, std::size_t size) noexcept;
/// The number in a file that holds one; INT64_MAX for "max".
std::int64_t number(int group, const char* file) noexcept;
/// The number after `key` in a file of "KEY NUMBER" lines; -ENOENT when the key is not there.
std::int64_t counter(int group, const char* file, const char* key) noexcept;

/// Puts the calling process (single-threaded) into the group whose cgroup.procs is open as `procs`. The kernel checks
/// the rights of whoever opened the descriptor, so this works after privileges are gone.
int join(int procs) noexcept;

/// v2: whether a process lives in the group or below (1, 0).
int populated(int group) noexcept;
/// v2: waits until the group is empty, -ETIMEDOUT after `timeout_ms`.
int wait_empty(int group, int timeout_ms) noexcept;
/// v2: SIGKILL to all processes in the group and below, in one step where the kernel can (5.14). Does not wait.
int kill_all(int group) noexcept;
/// v2: freezes or thaws, and waits until it is done.
int freeze(int group, bool frozen, int timeout_ms) noexcept;

/// How often the kernel's out-of-memory killer struck in the group or below; v1 and v2.
std::int64_t oom_kills(int memory_group, bool v2) noexcept;

/// Kills what lives in the group `name` of the directory `parent` and below (v1: in each of them, again and again),
/// waits for it to end, and removes the groups from the leaves up, trying again while the kernel says busy. No error
/// when it does not exist. -EBUSY or -ETIMEDOUT when something is left after `timeout_ms`.
int remove(int parent, const char* name, bool v2, int timeout_ms) noexcept;

}  // namespace dsec::runners::cgroup
