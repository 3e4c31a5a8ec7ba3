#include "registry/store/working_set.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "core/base/error.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::time_t kFresh = 3600;

fs::path used_directory(const engine::Home& home) { return home.store() / "used"; }

std::optional<std::time_t> time_of(const fs::path& file) {
  struct stat status;
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  return status.st_mtime;
}

void touch(const fs::path& file) noexcept {
  for (const bool again : {false, true}) {
    const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd) {
      ::futimens(fd.get(), nullptr);
      return;
    }
    if (again || errno != ENOENT || ::mkdir(file.parent_path().c_str(), 0700) != 0) return;
  }
}

}  // namespace

void note_source(LocalStore& store, const Digest& layer, const BlobOrigin& origin) {
  store.index()
      .take()
      ->prepare(
          "INSERT INTO layer_sources (layer, registry, allow_any_fs) SELECT digest, ?2, ?3 FROM layers WHERE digest = "
          "?1 "
          "ON CONFLICT (layer, registry) DO UPDATE SET allow_any_fs = excluded.allow_any_fs")
      .bind(layer.hex())
      .bind(origin.registry)
      .bind(std::int64_t{origin.allow_any_fs})
      .run();
}

std::map<Digest, std::vector<BlobOrigin>> layer_sources(Database& index) {
  std::map<Digest, std::vector<BlobOrigin>> sources;
  Statement query = index.prepare("SELECT layer, registry, allow_any_fs FROM layer_sources ORDER BY layer, registry");
  while (query.step()) sources[Digest::parse(query.text(0))].push_back({query.text(1), query.number(2) != 0});
  return sources;
}

void pin(LocalStore& store, const Digest& layer) {
  const auto index = store.index().take();
  Transaction transaction(*index);
  Statement known = index->prepare("SELECT 1 FROM layers WHERE digest = ?");
  if (!known.bind(layer.hex()).step()) throw failure("layer " + layer.brief() + " is gone from the store");
  index->prepare("INSERT OR IGNORE INTO pins (layer) VALUES (?)").bind(layer.hex()).run();
  transaction.commit();
}

bool unpin(LocalStore& store, const Digest& layer) {
  const auto index = store.index().take();
  index->prepare("DELETE FROM pins WHERE layer = ?").bind(layer.hex()).run();
  return index->changes() > 0;
}

std::set<Digest> pinned_layers(Database& index) {
  std::set<Digest> layers;
  Statement query = index.prepare("SELECT layer FROM pins");
  while (query.step()) layers.insert(Digest::parse(query.text(0)));
  return layers;
}

void note_use(const engine::Home& home, std::span<const Digest> layers) noexcept {
  try {
    const fs::path directory = used_directory(home);
    const std::time_t now = std::time(nullptr);
    for (const Digest& layer : layers) {
      const fs::path file = directory / layer.hex();
      const auto before = time_of(file);
      if (!before || *before < now - kFresh || *before > now) touch(file);
    }
  } catch (const std::exception&) {
    // Memory ran out: the time stays the old one.
  }
}

std::optional<std::chrono::system_clock::time_point> last_use(const engine::Home& home, const Digest& layer) {
  const auto time = time_of(used_directory(home) / layer.hex());
  if (!time) return std::nullopt;
  return std::chrono::system_clock::from_time_t(*time);
}

void forget_use(const engine::Home& home, const std::set<Digest>& known) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(used_directory(home), gone)) {
    const std::string name = entry.path().filename();
    if (!Digest::valid_hex(name) || known.contains(Digest::parse(name))) continue;
    ::unlink(entry.path().c_str());
  }
}

}  // namespace dsec::registry
