#pragma once

#include <stdint.h>

namespace dsec {

/// One record of a spool file (man/dsec-keeper.7.md), followed by `length` bytes; in the byte order of the machine.
struct SpoolRecord {
  uint64_t time_us;  ///< since the epoch
  uint32_t length;
  uint32_t stream;  ///< 1 stdout, 2 stderr
};
static_assert(sizeof(SpoolRecord) == 16);

}  // namespace dsec
