#include "registry/store/local_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/engine/mapped_blob.h"
#include "registry/store/blob_session.h"
#include "registry/store/working_set.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

/// A consistent view over several queries; readers never wait for writers.
class Snapshot {
 public:
  explicit Snapshot(Database& database) : database_(database) { database_.execute("BEGIN"); }
  Snapshot(const Snapshot&) = delete;
  ~Snapshot() {
    try {
      database_.execute("COMMIT");
    } catch (const Error&) {
      // Nothing was written, so there is nothing to lose.
    }
  }

 private:
  Database& database_;
};

std::string tag_text(const std::string& kind, const std::string& name, const std::string& tag) {
  return kind + "/" + name + ":" + tag;
}

std::vector<std::string> tags_of(Database& database, const Digest& layer) {
  std::vector<std::string> tags;
  Statement query = database.prepare("SELECT kind, name, tag FROM tags WHERE layer = ? ORDER BY kind, name, tag");
  query.bind(layer.hex());
  while (query.step()) tags.push_back(tag_text(query.text(0), query.text(1), query.text(2)));
  return tags;
}

constexpr const char* kReserve = "reserve";
// What the index's log grows by in a transaction or two, and then some.
constexpr std::uint64_t kReserveSize = 1 << 20;

bool is_file_of_size(const fs::path& path, std::uint64_t size) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         engine::fits_blob(static_cast<std::uint64_t>(status.st_size), size);
}

bool is_file(const fs::path& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// Other places of a blob, those that are as large as it should be.
std::vector<fs::path> places_of(Database& database, const Digest& blob) {
  std::vector<fs::path> places;
  Statement query =
      database.prepare("SELECT path, size FROM blob_places JOIN blobs ON digest = blob WHERE blob = ? ORDER BY path");
  query.bind(blob.hex());
  while (query.step())
    if (fs::path path = query.text(0); is_file_of_size(path, static_cast<std::uint64_t>(query.number(1))))
      places.push_back(std::move(path));
  return places;
}

void set_tag(Database& database, const LayerName& name, const std::string& tag, const Digest& layer) {
  database
      .prepare(
          "INSERT INTO tags (kind, name, tag, layer) VALUES (?, ?, ?, ?) "
          "ON CONFLICT (kind, name, tag) DO UPDATE SET layer = excluded.layer")
      .bind(to_string(name.kind))
      .bind(name.name)
      .bind(tag)
      .bind(layer.hex())
      .run();
}

void check_tag(const std::string& tag) {
  if (!valid_tag(tag))
    throw usage_error("tag " + quote(tag) + " is not valid")
        .hint("a tag is 1 to 128 letters, digits, '_', '.' or '-' and does not begin with '.' or '-'");
}

}  // namespace

template <typename Action>
auto LocalStore::with_reserve(Action&& action) {
  try {
    return action();
  } catch (const Error&) {
    struct statvfs space;
    const bool full = ::statvfs(home_.store().c_str(), &space) == 0 &&
                      static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize < kReserveSize;
    if (!full || !release_reserve()) throw;
  }
  return action();
}

// The first who opens the index needs room for the files that SQLite keeps beside it.
DatabasePool LocalStore::open_index() {
  make_directories(blob_root());
  return with_reserve([&] { return DatabasePool(home_.store() / "index.db"); });
}

LocalStore::LocalStore(const engine::Home& home) : home_(home), index_(open_index()) { keep_reserve(); }

LocalStore::~LocalStore() = default;

fs::path LocalStore::blob_file(const Digest& blob) const { return blob_root() / blob.hex().substr(0, 2) / blob.hex(); }

std::unique_ptr<engine::BlobSession> LocalStore::begin_session() { return std::make_unique<Session>(*this); }

engine::StoredLayer LocalStore::add(const LayerManifest& manifest, const std::string& tag, engine::Trust trust,
                                    engine::BlobSession& session, const std::map<std::string, std::string>& labels) {
  const auto* own = dynamic_cast<const Session*>(&session);
  if (!own || &own->store() != this) throw Error(ErrorKind::Internal, "a layer was added with a foreign session");
  if (!tag.empty()) check_tag(tag);
  const std::string text = manifest.canonical();
  const Digest digest = Digest::of(text);
  return attempt("cannot store layer " + manifest.name.str(), [&] {
    if (text.size() > kLargestManifest)
      throw failure("its manifest has " + std::to_string(text.size()) + " bytes, more than " +
                    std::to_string(kLargestManifest));
    const auto index = index_.take();
    Transaction transaction(*index);
    index
        ->prepare(
            "INSERT INTO layers (digest, kind, name, manifest, built_on, added_ms, trusted) VALUES (?1, ?2, ?3, ?4, "
            "nullif(?5, ''), ?6, ?7) "
            "ON CONFLICT (digest) DO UPDATE SET trusted = max(trusted, excluded.trusted)")
        .bind(digest.hex())
        .bind(to_string(manifest.name.kind))
        .bind(manifest.name.name)
        .bind(text)
        .bind(manifest.provenance.built_on ? manifest.provenance.built_on->hex() : "")
        .bind(std::chrono::duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count())
        .bind(std::int64_t{trust == engine::Trust::BuiltHere})
        .run();
    for (const LayerImage& image : manifest.images) {
      for (const Blob& blob : image.blobs) {
        Statement held = index->prepare("SELECT 1 FROM session_blobs WHERE session = ? AND blob = ?");
        if (!held.bind(own->id()).bind(blob.digest.hex()).step())
          throw Error(ErrorKind::Internal, "blob " + blob.digest.brief() + " is not held by the session");
        if (!is_file_of_size(blob_file(blob.digest), blob.size) && places_of(*index, blob.digest).empty() &&
            !has_source(*index, blob))
          throw failure("blob " + blob.digest.brief() + " is not there with the size the manifest gives, " +
                        std::to_string(blob.size));
        index->prepare("INSERT OR IGNORE INTO layer_blobs (layer, blob) VALUES (?, ?)")
            .bind(digest.hex())
            .bind(blob.digest.hex())
            .run();
      }
    }
    index->prepare("INSERT OR IGNORE INTO session_layers (session, layer) VALUES (?, ?)")
        .bind(own->id())
        .bind(digest.hex())
        .run();
    if (!tag.empty()) set_tag(*index, manifest.name, tag, digest);
    for (const auto& [key, value] : labels)
      index
          ->prepare(
              "INSERT INTO labels (layer, key, value) VALUES (?, ?, ?) "
              "ON CONFLICT (layer, key) DO UPDATE SET value = excluded.value")
          .bind(digest.hex())
          .bind(key)
          .bind(value)
          .run();
    engine::StoredLayer stored = load(*index, digest);
    transaction.commit();
    return stored;
  });
}

std::shared_ptr<const LayerManifest> LocalStore::manifest(Database& database, const Digest& layer) {
  {
    const std::lock_guard guard(cache_mutex_);
    if (const auto found = manifests_.find(layer); found != manifests_.end()) return found->second;
  }
  Statement query = database.prepare("SELECT manifest FROM layers WHERE digest = ?");
  if (!query.bind(layer.hex()).step()) throw failure("layer " + layer.brief() + " is gone from the store");
  auto parsed = std::make_shared<const LayerManifest>(LayerManifest::parse(query.text(0), layer.str()));
  const std::lock_guard guard(cache_mutex_);
  return manifests_.emplace(layer, std::move(parsed)).first->second;
}

engine::StoredLayer LocalStore::load(Database& database, const Digest& layer) {
  engine::StoredLayer stored{layer, *manifest(database, layer), tags_of(database, layer), {}, {}};
  Statement own = database.prepare("SELECT added_ms, trusted FROM layers WHERE digest = ?");
  if (!own.bind(layer.hex()).step()) throw failure("layer " + layer.brief() + " is gone from the store");
  stored.added = system_clock::time_point(milliseconds(own.number(0)));
  stored.trusted = own.number(1) != 0;
  Statement labels = database.prepare("SELECT key, value FROM labels WHERE layer = ?");
  labels.bind(layer.hex());
  while (labels.step()) stored.labels.emplace(labels.text(0), labels.text(1));
  Statement placed = database.prepare(
      "SELECT DISTINCT p.blob FROM layer_blobs l JOIN blob_places p ON p.blob = l.blob WHERE l.layer = ?");
  placed.bind(layer.hex());
  while (placed.step() && !stored.in_place) stored.in_place = !is_file(blob_file(Digest::parse(placed.text(0))));
  return stored;
}

std::optional<Digest> LocalStore::resolve(Database& database, const LayerRef& ref) {
  if (!ref.digest_prefix) {
    Statement query = database.prepare("SELECT layer FROM tags WHERE kind = ? AND name = ? AND tag = ?");
    query.bind(to_string(ref.name->kind)).bind(ref.name->name).bind(ref.tag.value_or("latest"));
    if (!query.step()) return std::nullopt;
    return Digest::parse(query.text(0));
  }
  // 'g' follows the last hex digit.
  Statement query = database.prepare(
      "SELECT digest FROM layers l WHERE digest >= ?1 AND digest < ?1 || 'g' AND (?2 = '' OR (kind = ?2 AND name = ?3) "
      "OR EXISTS (SELECT 1 FROM tags t WHERE t.layer = l.digest AND t.kind = ?2 AND t.name = ?3)) LIMIT 6");
  query.bind(*ref.digest_prefix);
  query.bind(ref.name ? to_string(ref.name->kind) : std::string_view()).bind(ref.name ? ref.name->name : "");
  std::vector<Digest> found;
  while (query.step()) found.push_back(Digest::parse(query.text(0)));
  if (found.empty()) return std::nullopt;
  if (found.size() == 1) return found.front();
  Error error = usage_error(quote(ref.str()) + " is ambiguous: several layers have this prefix");
  for (const Digest& candidate : found) {
    const LayerManifest& shown = *manifest(database, candidate);
    error.hint(shown.name.str() +
               "@sha256:" + candidate.hex().substr(0, std::max<std::size_t>(12, ref.digest_prefix->size() + 4)));
  }
  throw error;
}

std::optional<engine::StoredLayer> LocalStore::find(const LayerRef& ref) {
  const auto index = index_.take();
  const Snapshot snapshot(*index);
  const std::optional<Digest> digest = resolve(*index, ref);
  if (!digest) return std::nullopt;
  return load(*index, *digest);
}

engine::StoredLayer LocalStore::get(const LayerRef& ref) {
  const auto index = index_.take();
  const Snapshot snapshot(*index);
  if (const std::optional<Digest> digest = resolve(*index, ref)) return load(*index, *digest);
  Error error = usage_error("no layer " + quote(ref.str()) + " in the store");
  std::vector<std::string> known;
  Statement query = index->prepare("SELECT kind, name, tag FROM tags");
  while (query.step()) known.push_back(tag_text(query.text(0), query.text(1), query.text(2)));
  if (known.empty()) throw std::move(error).hint("dsec import or dsec pull: the store holds no tagged layer");
  if (ref.name)
    for (const std::string& name : nearest_names(ref.str(), known)) error.hint(name);
  if (error.hints().empty()) error.hint("dsec layer ls, which lists what the store holds");
  throw error;
}

std::vector<engine::StoredLayer> LocalStore::list() {
  const auto index = index_.take();
  const Snapshot snapshot(*index);
  std::vector<Digest> digests;
  Statement query = index->prepare("SELECT digest FROM layers ORDER BY kind, name, added_ms, digest");
  while (query.step()) digests.push_back(Digest::parse(query.text(0)));
  std::vector<engine::StoredLayer> layers;
  layers.reserve(digests.size());
  for (const Digest& digest : digests) layers.push_back(load(*index, digest));
  return layers;
}

void LocalStore::confirm(std::span<const Digest> layers) {
  const auto index = index_.take();
  // The writer's lock orders this against gc, which decides under the same lock and reads the leases there.
  const Transaction serialised(*index);
  for (const Digest& layer : layers) {
    Statement query = index->prepare("SELECT 1 FROM layers WHERE digest = ?");
    if (!query.bind(layer.hex()).step())
      throw failure("layer " + layer.str() + " is not in the store")
          .hint("dsec gc or another process removed it a moment ago: import or pull it again");
  }
  note_use(home_, layers);
}

void LocalStore::tag(const Digest& layer, const LayerName& name, const std::string& tag) {
  check_tag(tag);
  const auto index = index_.take();
  Transaction transaction(*index);
  Statement query = index->prepare("SELECT kind FROM layers WHERE digest = ?");
  if (!query.bind(layer.hex()).step()) throw usage_error("no layer " + quote(layer.str()) + " in the store");
  if (const std::string kind = query.text(0); kind != to_string(name.kind))
    throw usage_error("layer " + layer.brief() + " is a " + kind + ", so it cannot be tagged " +
                      quote(name.str() + ":" + tag));
  set_tag(*index, name, tag, layer);
  transaction.commit();
}

bool LocalStore::release_reserve() noexcept { return ::unlink((home_.store() / kReserve).c_str()) == 0; }

void LocalStore::keep_reserve() noexcept {
  const fs::path path = home_.store() / kReserve;
  if (is_file_of_size(path, kReserveSize)) return;
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  // Without room, or on a filesystem that cannot set space aside, there is none: that is no reason to fail.
  if (file && ::fallocate(file.get(), 0, 0, kReserveSize) != 0) ::unlink(path.c_str());
}

bool LocalStore::untag(const LayerName& name, const std::string& tag) {
  return with_reserve([&] {
    const auto index = index_.take();
    index->prepare("DELETE FROM tags WHERE kind = ? AND name = ? AND tag = ?")
        .bind(to_string(name.kind))
        .bind(name.name)
        .bind(tag)
        .run();
    return index->changes() > 0;
  });
}

Removal LocalStore::remove(const LayerRef& ref) {
  return with_reserve([&] { return remove_tags(ref); });
}

Removal LocalStore::remove_tags(const LayerRef& ref) {
  const engine::StoredLayer layer = get(ref);
  const auto index = index_.take();
  Transaction transaction(*index);
  Removal removal;
  if (ref.tag) {
    removal.tags = {ref.str()};
    index->prepare("DELETE FROM tags WHERE kind = ? AND name = ? AND tag = ?")
        .bind(to_string(ref.name->kind))
        .bind(ref.name->name)
        .bind(*ref.tag)
        .run();
  } else {
    removal.tags = tags_of(*index, layer.digest);
    index->prepare("DELETE FROM tags WHERE layer = ?").bind(layer.digest.hex()).run();
  }
  if (tags_of(*index, layer.digest).empty()) removal.untagged = layer.digest;
  transaction.commit();
  return removal;
}

void LocalStore::mark_trusted(const Digest& layer) {
  index_.take()->prepare("UPDATE layers SET trusted = 1 WHERE digest = ?").bind(layer.hex()).run();
}

void LocalStore::register_lock(const fs::path& path, std::span<const Digest> layers) {
  const std::string key = fs::absolute(path).lexically_normal().native();
  const auto index = index_.take();
  Transaction transaction(*index);
  index->prepare("DELETE FROM locks WHERE path = ?").bind(key).run();
  index->prepare("INSERT INTO locks (path) VALUES (?)").bind(key).run();
  for (const Digest& layer : layers)
    index->prepare("INSERT OR IGNORE INTO lock_layers (path, layer) VALUES (?, ?)").bind(key).bind(layer.hex()).run();
  transaction.commit();
}

fs::path LocalStore::blob_path(const Digest& blob) {
  fs::path file = blob_file(blob);
  if (is_file(file)) return file;
  const auto index = index_.take();
  if (const std::vector<fs::path> places = places_of(*index, blob); !places.empty()) return places.front();
  Statement lost = index->prepare("SELECT path FROM blob_places WHERE blob = ?");
  if (lost.bind(blob.hex()).step())
    throw failure("blob " + blob.brief() + " is not in the registry it is read from: " + quote(lost.text(0)))
        .hint("make the registry's directory available again, or pull the layer from another registry");
  if (const auto remote = on_demand(blob)) {
    if (!fetch_)
      throw failure("blob " + blob.brief() + " is loaded on demand, and not all of it is here")
          .hint("dsec pull " + remote->layer + ", which brings the rest");
    fetch_(*remote);
    return file;
  }
  throw failure("blob " + blob.brief() + " is not in the store")
      .hint("dsec layer verify, which names the layers that miss blobs; import or pull those again");
}

bool LocalStore::has_blob(const Digest& blob) {
  return is_file(blob_file(blob)) || !places_of(*index_.take(), blob).empty();
}

LocalStore::Session& LocalStore::own(engine::BlobSession& session) const {
  auto* own = dynamic_cast<Session*>(&session);
  if (!own || &own->store() != this) throw Error(ErrorKind::Internal, "a blob was held with a foreign session");
  return *own;
}

bool LocalStore::hold_in_place(engine::BlobSession& session, const Blob& blob, const fs::path& path) {
  return own(session).hold_in_place(blob, path);
}

std::unique_ptr<LocalStore> open_store(const engine::Home& home) { return std::make_unique<LocalStore>(home); }
std::unique_ptr<engine::LayerStore> make_layer_store(const engine::Home& home) { return open_store(home); }

}  // namespace dsec::registry
