#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/erofs_read/erofs_image.h"

// Everything the reader can do with an image of arbitrary bytes; the checksum is switched off, so that the rest is
// reached.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  using namespace dsec;
  std::string image_bytes(reinterpret_cast<const char*>(bytes), size);
  if (size > 1032) image_bytes[1032] = static_cast<char>(image_bytes[1032] & ~1);
  UniqueFd meta(::memfd_create("image", MFD_CLOEXEC));
  write_all(meta.get(), image_bytes);
  try {
    layers::ErofsImage image(std::move(meta), UniqueFd(), "'fuzzed'");
    layers::walk(image, [&](const std::string& path, const layers::ErofsInode& inode) {
      (void)layers::to_entry(image, path, inode);
      (void)image.find(path);
      if (!inode.is_file() || inode.compressed()) return;
      image.extents(inode, [](const layers::ErofsExtent&) {});
      char part[4096];
      (void)image.read(inode, inode.size / 2, part, sizeof part);
    });
  } catch (const Error&) {
  }
  return 0;
}
