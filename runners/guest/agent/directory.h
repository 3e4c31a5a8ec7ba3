#pragma once

#include "runners/guest/sys.h"

namespace dsec::guest {

/// Calls visit(name) for each entry of a directory but . and .., until one says true. Whether one did.
template <typename Visit>
bool find_entry(int base, const char* path, Visit visit) {
  struct Entry {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[1];
  };
  const long directory = open_at(base, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return false;
  alignas(Entry) char entries[4096];
  bool found = false;
  for (long size; !found && (size = sys(__NR_getdents64, directory, entries, sizeof entries)) > 0;) {
    for (long at = 0; !found && at < size;) {
      const Entry* const entry = reinterpret_cast<const Entry*>(entries + at);
      at += entry->length;
      const char* const name = entry->name;
      if (name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]))) continue;
      found = visit(name);
    }
  }
  close_fd(static_cast<int>(directory));
  return found;
}

}  // namespace dsec::guest
