#include "tests/unit/registry/failing_readdir.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>

namespace dsec::registry::test {
namespace {

std::mutex mutex;
std::string failing;  // empty: none
int allowed = 0;
std::map<DIR*, int> given;

bool fails(DIR* stream) {
  const std::lock_guard lock(mutex);
  if (failing.empty()) return false;
  char path[4096];
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(::dirfd(stream))).c_str(), path, sizeof path);
  return size > 0 && std::string(path, static_cast<std::size_t>(size)).ends_with(failing) && given[stream]++ >= allowed;
}

}  // namespace

FailingReaddir::FailingReaddir(std::string path_end, int entries) {
  const std::lock_guard lock(mutex);
  failing = std::move(path_end);
  allowed = entries;
  given.clear();
}

FailingReaddir::~FailingReaddir() {
  const std::lock_guard lock(mutex);
  failing.clear();
}

}  // namespace dsec::registry::test

// In place of the C library's, also for std::filesystem.
extern "C" dirent* readdir(DIR* stream) {
  static auto* const real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  if (!dsec::registry::test::fails(stream)) return real(stream);
  errno = EIO;
  return nullptr;
}
