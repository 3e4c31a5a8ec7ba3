#include "runners/guest/memory.h"
#include "runners/guest/sys.h"

namespace dsec::guest {

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

void write_number(char* to, uint32_t number) {
  char digits[12];
  unsigned count = 0;
  do digits[count++] = static_cast<char>('0' + number % 10);
  while (number /= 10);
  while (count) *to++ = digits[--count];
  *to = '\0';
}

}  // namespace dsec::guest
