#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsec {

/// Little-endian fields of a structure that was read; throws std::out_of_range beyond its end.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  std::uint8_t u8(std::size_t at) const { return static_cast<unsigned char>(bytes_.at(at)); }
  std::uint16_t u16(std::size_t at) const { return static_cast<std::uint16_t>(u8(at) | u8(at + 1) << 8); }
  std::uint32_t u32(std::size_t at) const { return u16(at) | static_cast<std::uint32_t>(u16(at + 2)) << 16; }
  std::uint64_t u64(std::size_t at) const { return u32(at) | static_cast<std::uint64_t>(u32(at + 4)) << 32; }

 private:
  std::string_view bytes_;
};

/// Writes the `size` low bytes of a number to `bytes`, least significant first, from `at` on.
inline void put_number(std::string& bytes, std::size_t at, std::uint64_t number, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes.at(at + i) = static_cast<char>(number >> (8 * i) & 0xff);
}
inline void put_u32(std::string& bytes, std::size_t at, std::uint32_t number) { put_number(bytes, at, number, 4); }
inline void put_u64(std::string& bytes, std::size_t at, std::uint64_t number) { put_number(bytes, at, number, 8); }

}  // namespace dsec
