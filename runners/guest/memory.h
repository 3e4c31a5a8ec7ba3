#pragma once

#include <stddef.h>
#include <stdint.h>

namespace dsec::guest {

/// A block of at least `size` bytes, or the process ends: the keeper has no way to go on without memory, and its death
/// takes the sandbox along. Small blocks come from size classes and are reused, big ones are mappings of their own.
void* allocate(size_t size);
void release(void* block, size_t size);

template <typename T>
T* make() {
  T* object = static_cast<T*>(allocate(sizeof(T)));
  __builtin_memset(static_cast<void*>(object), 0, sizeof(T));
  return object;
}
template <typename T>
void destroy(T* object) {
  release(object, sizeof(T));
}

/// Its digits and a NUL: at most 11 bytes.
void write_number(char* to, uint32_t number);

bool is_utf8(const char* bytes, size_t count);

/// Bytes that grow. Plain data: zero is a valid empty buffer, and clear() must be called by its owner.
struct Buffer {
  char* data;
  size_t size, room;

  void reserve(size_t wanted);
  void append(const char* bytes, size_t count);
  void append(const char* text);
  void append_number(int64_t value);
  /// As the content of a JSON string: control characters and bytes that are no UTF-8 become \u00XX.
  void append_json(const char* bytes, size_t count);
  /// Drops the first `count` bytes.
  void consume(size_t count);
  void clear();
};

}  // namespace dsec::guest
