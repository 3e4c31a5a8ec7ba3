#include "registry/store/blob_session.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/engine/lease.h"
#include "core/engine/mapped_blob.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

// Blobs never change: nobody, dsec included, may open one for writing.
constexpr mode_t kBlobMode = 0444;

std::optional<std::uint64_t> size_of(const fs::path& file) {
  struct stat status;
  if (::lstat(file.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw system_error("stat " + quote(file.native()));
  }
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

LocalStore::Session::Session(LocalStore& store) : store_(store) {
  const engine::ProcessIdentity self = engine::ProcessIdentity::self();
  const auto index = store_.index().take();
  index->prepare("INSERT INTO sessions (boot_id, pid, start_ticks) VALUES (?, ?, ?)")
      .bind(self.boot_id)
      .bind(static_cast<std::int64_t>(self.pid))
      .bind(static_cast<std::int64_t>(self.start_ticks))
      .run();
  id_ = index->last_row_id();
}

LocalStore::Session::~Session() {
  try {
    store_.index().take()->prepare("DELETE FROM sessions WHERE id = ?").bind(id_).run();
  } catch (const Error&) {
    // gc ends the session once this process is gone.
  }
}

TempFile LocalStore::Session::new_file() { return TempFile(store_.blob_root()); }

// With a size: the blob is recorded when it is new. Without: false when it is unknown. Also undoes the mark of damage
// when the file it was about is gone.
bool LocalStore::Session::record(const Digest& digest, std::optional<std::uint64_t> size) {
  const auto index = store_.index().take();
  Transaction transaction(*index);
  if (size) {
    index->prepare("INSERT INTO blobs (digest, size) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING")
        .bind(digest.hex())
        .bind(static_cast<std::int64_t>(*size))
        .run();
  } else {
    Statement known = index->prepare("SELECT 1 FROM blobs WHERE digest = ? AND damaged = 0");
    if (!known.bind(digest.hex()).step()) return false;
  }
  index->prepare("INSERT OR IGNORE INTO session_blobs (session, blob) VALUES (?, ?)")
      .bind(id_)
      .bind(digest.hex())
      .run();
  transaction.commit();
  return true;
}

// Whether the file is there, as large as it should be, and not known to be damaged.
bool LocalStore::Session::is_whole(const Digest& digest, std::uint64_t size) {
  const std::optional<std::uint64_t> found = size_of(store_.blob_file(digest));
  return found && engine::fits_blob(*found, size) && !is_damaged(*store_.index().take(), digest);
}

void LocalStore::Session::mark_whole(const Digest& digest, std::uint64_t size) {
  store_.index()
      .take()
      ->prepare("UPDATE blobs SET damaged = 0, size = ? WHERE digest = ? AND (damaged <> 0 OR size <> ?)")
      .bind(static_cast<std::int64_t>(size))
      .bind(digest.hex())
      .bind(static_cast<std::int64_t>(size))
      .run();
}

Blob LocalStore::Session::adopt(TempFile file, BlobRole role, std::optional<Digest> known) {
  const Digest digest = known ? *known : digest_of_fd(file.fd());
  return attempt("cannot store blob " + digest.brief(), [&] {
    struct stat status;
    if (::fstat(file.fd(), &status) != 0) throw system_error("stat a new blob");
    const auto size = static_cast<std::uint64_t>(status.st_size);
    record(digest, size);

    const fs::path target = store_.blob_file(digest);
    // A kept file is not replaced: sandboxes may have it mounted, and two files would take the space of two.
    if (is_whole(digest, size)) return Blob{role, digest, size};

    if (::fchmod(file.fd(), kBlobMode) != 0) throw system_error("chmod a new blob");
    make_directories(target.parent_path());
    // Also when another process made the directory: it may not have come to syncing it yet.
    sync_directory(store_.blob_root());
    file.publish(target);
    store_.grown_ = true;
    mark_whole(digest, size);
    return Blob{role, digest, size};
  });
}

bool LocalStore::Session::hold(const Digest& digest) {
  // Recorded first, looked at afterwards: gc may have been removing it.
  return record(digest, std::nullopt) && store_.has_blob(digest);
}

bool LocalStore::Session::hold_in_place(const Blob& blob, const fs::path& path) {
  if (size_of(path) != blob.size) return false;
  record(blob.digest, blob.size);
  store_.index()
      .take()
      ->prepare("INSERT OR IGNORE INTO blob_places (blob, path) VALUES (?, ?)")
      .bind(blob.digest.hex())
      .bind(path.native())
      .run();
  return true;
}

void LocalStore::Session::hold_on_demand(const Blob& blob, const Digest& chunks, const BlobOrigin& origin) {
  record(blob.digest, blob.size);
  store_.index()
      .take()
      ->prepare(
          "INSERT INTO blob_sources (blob, registry, chunks, allow_any_fs, size) VALUES (?, ?, ?, ?, ?) "
          "ON CONFLICT (blob, registry, chunks) DO UPDATE SET allow_any_fs = excluded.allow_any_fs, "
          "size = excluded.size")
      .bind(blob.digest.hex())
      .bind(origin.registry)
      .bind(chunks.hex())
      .bind(std::int64_t{origin.allow_any_fs})
      .bind(static_cast<std::int64_t>(blob.size))
      .run();
}

void LocalStore::Session::take_file(const Blob& blob, const fs::path& file) {
  attempt("cannot store blob " + blob.digest.brief(), [&] {
    record(blob.digest, blob.size);
    const fs::path target = store_.blob_file(blob.digest);
    const UniqueFd open = open_file(file, O_RDONLY | O_NOFOLLOW);
    if (size_of(file) != blob.size) throw failure("its file has another size");
    if (is_whole(blob.digest, blob.size)) {
      // Another process has brought it.
      ::unlink(file.c_str());
      return;
    }
    if (::fchmod(open.get(), kBlobMode) != 0) throw system_error("chmod a new blob");
    if (::fsync(open.get()) != 0) throw system_error("flush a new blob");
    make_directories(target.parent_path());
    sync_directory(store_.blob_root());
    if (::rename(file.c_str(), target.c_str()) != 0) throw system_error("rename " + quote(file.native()));
    sync_directory(target.parent_path());
    mark_whole(blob.digest, blob.size);
  });
}

bool is_damaged(Database& database, const Digest& blob) {
  Statement query = database.prepare("SELECT damaged FROM blobs WHERE digest = ?");
  return query.bind(blob.hex()).step() && query.number(0) != 0;
}

}  // namespace dsec::registry
