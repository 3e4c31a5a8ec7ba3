#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <map>
#include <vector>

#include "runners/isolation/gen/seccomp_list.h"

namespace dsec::seccomp_gen {

struct Architecture {
  std::uint32_t audit_arch = 0;  ///< AUDIT_ARCH_*, as in seccomp_data.arch
  std::map<std::string, unsigned> numbers;
};

/// A classic BPF program for seccomp(2): the first architecture is tested first, one that is none of them ends the
/// process. Within one, a binary search over ranges of numbers that share an action, so that a program is short, the
/// path of a call is a handful of comparisons, and the kernel can precompute the calls that are always allowed (it
/// follows only loads, comparisons and jumps). Numbers from 0x40000000 on (x32) lie in the last range: the default.
/// Throws std::runtime_error when a jump would be too far.
std::vector<sock_filter> compile(const List& list, const std::vector<Architecture>& architectures);

}  // namespace dsec::seccomp_gen
