#pragma once

#include <stddef.h>
#include <stdint.h>

namespace dsec {

/// CRC-32C (Castagnoli) of `size` bytes, continued from the checksum of the bytes before them; 0 begins. Needs no C
/// library, as the keeper writes what others read.
inline uint32_t crc32c(uint32_t before, const void* data, size_t size) {
  struct Table {
    uint32_t of[256];
    constexpr Table() : of() {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; ++bit) rest = rest & 1 ? rest >> 1 ^ 0x82f63b78u : rest >> 1;
        of[byte] = rest;
      }
    }
  };
  static constexpr Table table;
  const unsigned char* const bytes = static_cast<const unsigned char*>(data);
  uint32_t state = ~before;
  for (size_t i = 0; i < size; ++i) state = table.of[(state ^ bytes[i]) & 0xff] ^ state >> 8;
  return ~state;
}

}  // namespace dsec
