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

void Buffer::reserve(size_t wanted) {
  if (wanted <= room) return;
  size_t bigger = room ? room : 128;
  while (bigger < wanted) bigger *= 2;
  char* const moved = static_cast<char*>(allocate(bigger));
  memcpy(moved, data, size);
  release(data, room);
  data = moved;
  room = bigger;
}

void Buffer::append(const char* bytes, size_t count) {
  reserve(size + count);
  memcpy(data + size, bytes, count);
  size += count;
}

void Buffer::append(const char* text) { append(text, strlen(text)); }

void Buffer::append_number(int64_t value) {
  char digits[24];
  char* at = digits + sizeof digits;
  uint64_t rest = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  do *--at = static_cast<char>('0' + rest % 10);
  while (rest /= 10);
  if (value < 0) *--at = '-';
  append(at, static_cast<size_t>(digits + sizeof digits - at));
}

namespace {

// The length of the well-formed UTF-8 sequence that starts here, 0 when there is none.
size_t utf8_length(const unsigned char* at, size_t left) {
  if (at[0] < 0x80) return 1;
  size_t length = 0;
  uint32_t value = 0, least = 0;
  if (at[0] >= 0xc2 && at[0] <= 0xdf) length = 2, value = at[0] & 0x1fu, least = 0x80;
  if (at[0] >= 0xe0 && at[0] <= 0xef) length = 3, value = at[0] & 0xfu, least = 0x800;
  if (at[0] >= 0xf0 && at[0] <= 0xf4) length = 4, value = at[0] & 0x7u, least = 0x10000;
  if (!length || left < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at[i] & 0xc0) != 0x80) return 0;
    value = value << 6 | (at[i] & 0x3fu);
  }
  return value < least || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) ? 0 : length;
}

}  // namespace

bool is_utf8(const char* bytes, size_t count) {
  const unsigned char* at = reinterpret_cast<const unsigned char*>(bytes);
  const unsigned char* const end = at + count;
  while (at < end) {
    const size_t length = utf8_length(at, static_cast<size_t>(end - at));
    if (!length) return false;
    at += length;
  }
  return true;
}

void Buffer::append_json(const char* bytes, size_t count) {
  static constexpr char kHex[] = "0123456789abcdef";
  const unsigned char* at = reinterpret_cast<const unsigned char*>(bytes);
  const unsigned char* const end = at + count;
  while (at < end) {
    const size_t length = utf8_length(at, static_cast<size_t>(end - at));
    if (*at == '"' || *at == '\\') {
      const char escaped[] = {'\\', static_cast<char>(*at)};
      append(escaped, 2);
    } else if (*at < 0x20 || *at == 0x7f || length == 0) {
      const char escaped[] = {'\\', 'u', '0', '0', kHex[*at >> 4], kHex[*at & 15]};
      append(escaped, 6);
    } else {
      append(reinterpret_cast<const char*>(at), length);
      at += length;
      continue;
    }
    ++at;
  }
}

void Buffer::consume(size_t count) {
  size -= count;
  if (size == 0) {
    // A burst must not keep its memory for the rest of the sandbox's life.
    if (room > 4096) clear();
    return;
  }
  memmove(data, data + count, size);
}

void Buffer::clear() {
  release(data, room);
  data = nullptr;
  size = room = 0;
}

}  // namespace dsec::guest
