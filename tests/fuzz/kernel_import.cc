// What a kernel package holds: modules and a boot image of anybody's making.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/error.h"
#include "runners/vm/boot_image.h"
#include "runners/vm/module_info.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    dsec::runners::read_module_info(bytes);
  } catch (const dsec::Error&) {
  }
  try {
    dsec::runners::boot_image_release(bytes);
    dsec::runners::extract_vmlinux(bytes);
  } catch (const dsec::Error&) {
  }
  return 0;
}
