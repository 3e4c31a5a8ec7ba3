#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/overlaybd/stack.h"

namespace {

using namespace dsec;
namespace obd = dsec::layers::overlaybd;

UniqueFd in_memory(std::string_view bytes) {
  UniqueFd file(::memfd_create("layer", MFD_CLOEXEC));
  write_all(file.get(), bytes);
  return file;
}

std::string path_of(const UniqueFd& file) { return "/proc/self/fd/" + std::to_string(file.get()); }

// Checksums would keep everything behind them from being reached: a flag says that there are none.
std::string without_checksums(std::string bytes) {
  const std::size_t places[] = {0, 1536, bytes.size() < 512 ? 0 : bytes.size() - 512};
  for (const std::size_t at : places)
    if (bytes.size() >= at + 512 && bytes.compare(at, 5, "ZFile") == 0) {
      bytes[at + 32] = static_cast<char>(bytes[at + 32] & ~16);
      bytes[at + 88] = 0;
    }
  return bytes;
}

void read_some(const obd::Stack& stack) {
  char part[9000];
  for (const std::uint64_t at :
       {std::uint64_t{0}, stack.size() / 2, stack.size() - std::min<std::uint64_t>(stack.size(), 5000)})
    stack.read(at, part, static_cast<std::size_t>(std::min<std::uint64_t>(sizeof part, stack.size() - at)));
}

}  // namespace

// The first byte says what the rest is: a sealed layer, or two files of a writable one, on top of nothing or of a
// layer.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  if (size < 4) return 0;
  const unsigned kind = bytes[0];
  const std::size_t split = std::min<std::size_t>(size - 3, static_cast<std::size_t>(bytes[1]) << 8 | bytes[2]);
  const std::string rest(reinterpret_cast<const char*>(bytes) + 3, size - 3);
  try {
    std::vector<std::filesystem::path> files;
    std::vector<UniqueFd> open;
    const auto add = [&](std::string_view content) {
      open.push_back(in_memory(content));
      files.emplace_back(path_of(open.back()));
    };
    if (kind % 2 == 0) {
      add(without_checksums(rest));
    } else {
      add(std::string_view(rest).substr(0, split));
      add(std::string_view(rest).substr(split));
    }
    const obd::Stack stack =
        obd::Stack::open(files, kind & 2 ? obd::WritableLayer::Access::Write : obd::WritableLayer::Access::Read);
    read_some(stack);
    if (stack.top() && (kind & 2) && stack.size() >= 8192) {
      stack.top()->write(512, std::string(1024, 'x'));
      stack.top()->discard(4096, 4096);
      read_some(stack);
    }
  } catch (const Error&) {
  }
  return 0;
}
