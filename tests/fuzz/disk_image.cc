// The beginning of a machine's disk, as anybody may give it to dsec import; and a picture of a screen.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/disk/disk_image.h"
#include "runners/vm/full/machine_screen.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const UniqueFd disk(::memfd_create("disk", MFD_CLOEXEC));
  write_all(disk.get(), bytes);
  try {
    const layers::DiskHeader header = layers::read_disk_header(disk.get(), "'fuzzed'");
    if (header.size == 0 || header.size % 512 != 0) std::abort();
    if (header.format == "raw" && header.size != size) std::abort();
  } catch (const Error&) {
  }
  try {
    const runners::ScreenSize screen = runners::size_of_png(bytes);
    if (screen.width == 0 || screen.height == 0) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
