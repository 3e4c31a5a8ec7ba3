#include "runners/guest/memory.h"

#include <linux/mman.h>

#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr size_t kSmallest = 32, kClasses = 7;  // 32 … 2048
constexpr size_t kChunk = 16384;

struct Free {
  Free* next;
};
Free* free_lists[kClasses];
char* chunk_at;
char* chunk_end;

void* map(size_t size) {
  const long address =
      sys(__NR_mmap, nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, static_cast<long>(0));
  if (address < 0 && address > -4096) exit_now(121);
  return reinterpret_cast<void*>(address);
}

size_t round_to_pages(size_t size) { return (size + 4095) & ~size_t{4095}; }

// kClasses: too big for a class.
size_t class_of(size_t size) {
  size_t index = 0;
  for (size_t room = kSmallest; index < kClasses && room < size; room *= 2) ++index;
  return index;
}

}  // namespace

void* allocate(size_t size) {
  const size_t index = class_of(size);
  if (index == kClasses) return map(round_to_pages(size));
  if (Free* block = free_lists[index]) {
    free_lists[index] = block->next;
    return block;
  }
  const size_t room = kSmallest << index;
  if (static_cast<size_t>(chunk_end - chunk_at) < room) {
    chunk_at = static_cast<char*>(map(kChunk));
    chunk_end = chunk_at + kChunk;
  }
  void* const block = chunk_at;
  chunk_at += room;
  return block;
}

void release(void* block, size_t size) {
  if (!block) return;
  const size_t index = class_of(size);
  if (index == kClasses) {
    sys(__NR_munmap, block, round_to_pages(size));
    return;
  }
  Free* const entry = static_cast<Free*>(block);
  entry->next = free_lists[index];
  free_lists[index] = entry;
}

}  // namespace dsec::guest
