#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/files.h"

// Unpacks arbitrary bytes as a tar stream into a tree, beside which nothing may appear or change.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  using namespace dsec;
  namespace fs = std::filesystem;
  const TempDirectory directory(fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path());
  make_directories(directory.path() / "root/work");
  make_directories(directory.path() / "outside");
  fs::create_symlink("../../outside", directory.path() / "root/work/out");
  const UniqueFd root = open_file(directory.path() / "root", O_PATH | O_DIRECTORY);
  const UniqueFd tar(::memfd_create("tar", MFD_CLOEXEC));
  write_all(tar.get(), {reinterpret_cast<const char*>(bytes), size});
  ::lseek(tar.get(), 0, SEEK_SET);
  try {
    runners::copy_in({root.get(), {.first = ::getuid(), .count = ::getuid() == 0 ? runners::kIdCount : 1}}, "/work",
                     tar.get());
  } catch (const Error&) {
  }
  if (!fs::is_empty(directory.path() / "outside")) std::abort();
  if (std::distance(fs::directory_iterator(directory.path()), {}) != 2) std::abort();
  return 0;
}
