#include "runners/container/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"

// Since Linux 6.3: says that the file is there to be executed, which vm.memfd_noexec may otherwise forbid.
#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace dsec::runners {
namespace fs = std::filesystem;

UniqueFd open_own_program(const char* name) {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& candidate : {here / name, here / "../libexec/dsec" / name}) {
    UniqueFd file(::open(candidate.c_str(), O_RDONLY | O_CLOEXEC));
    if (file) return file;
    if (errno != ENOENT && errno != ENOTDIR) throw system_error("open " + quote(candidate.native()));
  }
  throw failure(std::string(name) + " is neither beside the program in " + quote(here.native()) +
                " nor in ../libexec/dsec")
      .hint("install dsec with its libexec directory");
}

UniqueFd load_guest_program() {
  const UniqueFd source = open_own_program("dsec-init");
  struct stat info = {};
  if (::fstat(source.get(), &info) != 0) throw system_error("stat dsec-init");
  UniqueFd copy(::memfd_create("dsec-init", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC));
  if (!copy && errno == EINVAL) copy.reset(::memfd_create("dsec-init", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!copy) throw system_error("make memory for dsec-init");
  for (off_t left = info.st_size; left > 0;) {
    const ssize_t copied = ::sendfile(copy.get(), source.get(), nullptr, static_cast<std::size_t>(left));
    if (copied <= 0) throw system_error("copy dsec-init");
    left -= copied;
  }
  if (::fchmod(copy.get(), 0111) != 0) throw system_error("set the mode of dsec-init");
  if (::fcntl(copy.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw system_error("seal dsec-init");
  return copy;
}

}  // namespace dsec::runners
