#include "runners/guest/memory.h"

#include <linux/mman.h>
#include <stdint.h>

#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr size_t kPage = 4096;
// 32 … 2048 come from pages that are cut up, 4096 … 16384 are pages, and what is bigger is a mapping of its own, which
// goes when it is released: to give up a page costs three times as much as to get one.
constexpr size_t kSmallest = 32, kClasses = 10, kFirstOfPages = 7;

struct Free {
  Free* next;
};
Free* free_lists[kClasses];
char* chunk_at;
char* chunk_end;

// What most keepers get by with, where the kernel has tables for the program's own pages anyway.
alignas(kPage) char arena[256 << 10];
size_t arena_used;
bool mapped;  ///< something, that may be there still

void* map(size_t size) {
  const long address =
      sys(__NR_mmap, nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, static_cast<long>(0));
  if (address < 0 && address > -4096) exit_now(121);
  mapped = true;
  return reinterpret_cast<void*>(address);
}

uintptr_t number(const void* at) { return reinterpret_cast<uintptr_t>(at); }
size_t round_to_pages(size_t size) { return (size + kPage - 1) & ~(kPage - 1); }
char* page_of(const void* at) { return reinterpret_cast<char*>(number(at) & ~(kPage - 1)); }

char* take_pages(size_t size) {
  if (sizeof arena - arena_used < size) return static_cast<char*>(map(size));
  char* const pages = arena + arena_used;
  arena_used += size;
  return pages;
}

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
  if (index >= kFirstOfPages) return take_pages(room);
  if (static_cast<size_t>(chunk_end - chunk_at) < room) {
    chunk_at = take_pages(kPage);
    chunk_end = chunk_at + kPage;
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

extern "C" char __bss_start[], _end[];  // the linker's

bool clear_memory() {
  if (mapped) return false;
  char* const begin = page_of(__bss_start);
  unsigned char is_there[1 << 8];
  const size_t pages = round_to_pages(number(_end) - number(begin)) / kPage;
  if (pages > sizeof is_there || sys(__NR_mincore, begin, pages * kPage, is_there) < 0) return false;
  for (size_t i = 0, end; i < pages; i = end) {
    for (end = i + 1; end < pages && ((is_there[end] ^ is_there[i]) & 1) == 0;) ++end;
    char* const from = i == 0 ? __bss_start : begin + i * kPage;
    const size_t size = number(begin + end * kPage) - number(from);
    // What is not there may be swapped out.
    if (is_there[i] & 1) {
      memset(from, 0, size);
    } else {
      sys(__NR_madvise, page_of(from), round_to_pages(size), MADV_DONTNEED);
    }
  }
  return true;
}

}  // namespace dsec::guest
