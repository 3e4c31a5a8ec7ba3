#include "runners/vm/boot_image.h"

#include <cstdint>
#include <cstring>

#include "core/base/error.h"
#include "runners/vm/unpacked.h"

namespace dsec::runners {
namespace {

// The setup header of the x86 boot protocol.
constexpr std::size_t kSetupSectors = 0x1f1, kMagicAt = 0x202, kVersionAt = 0x206, kReleaseAt = 0x20e;
constexpr std::size_t kPayloadOffset = 0x248, kPayloadLength = 0x24c, kHeaderEnd = 0x250;
constexpr std::string_view kMagic = "HdrS";
constexpr unsigned kWithPayload = 0x208;
constexpr std::size_t kSector = 512;
constexpr std::uint64_t kMostKernel = 512ull << 20;

template <typename T>
T number_at(std::string_view image, std::size_t at) {
  T value;
  std::memcpy(&value, image.data() + at, sizeof value);
  return value;
}

bool is_boot_image(std::string_view image) {
  return image.size() > kHeaderEnd && image.substr(kMagicAt, kMagic.size()) == kMagic;
}

}  // namespace

std::string boot_image_release(std::string_view image) {
  if (!is_boot_image(image)) return "";
  const std::size_t at = number_at<std::uint16_t>(image, kReleaseAt) + kSector;
  if (at >= image.size()) return "";
  const std::string_view text = image.substr(at, 128);
  const auto end = text.find_first_of(std::string_view(" \0", 2));
  return std::string(text.substr(0, std::min(end, text.size())));
}

std::optional<std::string> extract_vmlinux(std::string_view image) {
  if (!is_boot_image(image) || number_at<std::uint16_t>(image, kVersionAt) < kWithPayload) return std::nullopt;
  const std::size_t sectors = static_cast<std::uint8_t>(image[kSetupSectors]);
  const std::uint64_t begin =
      (sectors == 0 ? 5 : sectors + 1) * kSector + number_at<std::uint32_t>(image, kPayloadOffset);
  const std::uint64_t size = number_at<std::uint32_t>(image, kPayloadLength);
  if (begin > image.size() || image.size() - begin < size) throw failure("the kernel is cut off");
  std::string kernel = unpack(image.substr(begin, size), kMostKernel);
  if (!kernel.starts_with("\x7f"
                          "ELF"))
    return std::nullopt;
  return kernel;
}

}  // namespace dsec::runners
