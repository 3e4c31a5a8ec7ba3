#include "layers/build/step_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

constexpr std::time_t kForgottenAfter = 30 * 24 * 3600;  // seconds since an entry was last of use

}  // namespace

StepCache::StepCache(fs::path directory, engine::LayerStore& store) : directory_(std::move(directory)), store_(store) {
  make_directories(directory_, 0700);
}

fs::path StepCache::file(const Digest& key) const { return directory_ / key.hex(); }

std::optional<engine::StoredLayer> StepCache::find(const Digest& key) {
  const fs::path path = file(key);
  if (!fs::exists(path)) return std::nullopt;
  const std::string text = read_file(path, 128);
  std::optional<engine::StoredLayer> layer;
  if (Digest::valid_hex(text)) layer = store_.find(LayerRef::of(Digest::parse(text)));
  if (!layer)
    ::unlink(path.c_str());
  else
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return layer;
}

void StepCache::put(const Digest& key, const engine::StoredLayer& layer) {
  const fs::path path = file(key);
  write_file_atomic(path, layer.digest.hex(), 0600);
  store_.register_lock(path, std::span(&layer.digest, 1));
  forget_old_entries();
}

void StepCache::forget_all(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    if (const std::string name = at->path().filename().native();
        Digest::valid_hex(name) || name.starts_with("context-"))
      ::unlink(at->path().c_str());
}

void StepCache::forget_old_entries() const {
  std::error_code error;
  for (fs::directory_iterator at(directory_, error), end; !error && at != end; at.increment(error)) {
    struct stat status;
    if (::lstat(at->path().c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_mtime + kForgottenAfter < std::time(nullptr))
      ::unlink(at->path().c_str());
  }
}

}  // namespace dsec::layers
