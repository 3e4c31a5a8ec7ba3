// What QEMU saves of a machine whose guest may have got hold of it.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "runners/vm/qemu_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dsec::UniqueFd memory(::memfd_create("memory", MFD_CLOEXEC)), state(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const dsec::runners::ReadSome read = [&](char* into, std::size_t most) {
    const std::size_t count = std::min(most, size);
    std::memcpy(into, data, count);
    data += count;
    size -= count;
    return count;
  };
  try {
    dsec::runners::split_qemu_stream(read, "microvm.ram", 1 << 20, memory.get(), state.get());
  } catch (const dsec::Error&) {
  }
  return 0;
}
