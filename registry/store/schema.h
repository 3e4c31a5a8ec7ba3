#pragma once

namespace dsec::registry {

/// store/index.db, one text per format version: never changed once released, only added to. Digests are 64 hex digits,
/// times milliseconds since 1970. Blob files are the truth about what is there: a row of `blobs` says what a file
/// should be, not that it exists.
inline constexpr const char* kMigrations[] = {
    R"sql(
-- What `dsec layer ls` lists. The manifest is kept in its canonical bytes, whose sha256 is the digest.
CREATE TABLE layers (
  digest   TEXT PRIMARY KEY,
  kind     TEXT NOT NULL,
  name     TEXT NOT NULL,
  manifest TEXT NOT NULL,
  built_on TEXT,             -- manifest digest of the layer its steps ran on; kept with it while it is there
  added_ms INTEGER NOT NULL,
  trusted  INTEGER NOT NULL  -- 1: built here or checked, so that the kernel may mount it
) WITHOUT ROWID;
CREATE INDEX layers_by_name ON layers (kind, name);

CREATE TABLE blobs (
  digest  TEXT PRIMARY KEY,
  size    INTEGER NOT NULL,
  damaged INTEGER NOT NULL DEFAULT 0  -- 1: verification found other bytes; the next import replaces the file
) WITHOUT ROWID;

-- A blob's reference count is its number of rows here.
CREATE TABLE layer_blobs (
  layer TEXT NOT NULL REFERENCES layers (digest) ON DELETE CASCADE,
  blob  TEXT NOT NULL REFERENCES blobs (digest),
  PRIMARY KEY (layer, blob)
) WITHOUT ROWID;
CREATE INDEX layer_blobs_by_blob ON layer_blobs (blob);

-- Where else a blob lies: files of registries added with --in-place.
CREATE TABLE blob_places (
  blob TEXT NOT NULL REFERENCES blobs (digest) ON DELETE CASCADE,
  path TEXT NOT NULL,
  PRIMARY KEY (blob, path)
) WITHOUT ROWID;

CREATE TABLE tags (
  kind  TEXT NOT NULL,
  name  TEXT NOT NULL,
  tag   TEXT NOT NULL,
  layer TEXT NOT NULL REFERENCES layers (digest) ON DELETE CASCADE,
  PRIMARY KEY (kind, name, tag)
) WITHOUT ROWID;
CREATE INDEX tags_by_layer ON tags (layer);

CREATE TABLE labels (
  layer TEXT NOT NULL REFERENCES layers (digest) ON DELETE CASCADE,
  key   TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (layer, key)
) WITHOUT ROWID;

-- Who is bringing blobs in: what they hold stays until the process is gone or has ended the session.
CREATE TABLE sessions (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  boot_id     TEXT NOT NULL,
  pid         INTEGER NOT NULL,
  start_ticks INTEGER NOT NULL
);
CREATE TABLE session_blobs (
  session INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  blob    TEXT NOT NULL REFERENCES blobs (digest),
  PRIMARY KEY (session, blob)
) WITHOUT ROWID;
-- Layers without a tag that a process has added: intermediate ones of a build.
CREATE TABLE session_layers (
  session INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  layer   TEXT NOT NULL REFERENCES layers (digest) ON DELETE CASCADE,
  PRIMARY KEY (session, layer)
) WITHOUT ROWID;
CREATE INDEX session_blobs_by_blob ON session_blobs (blob);

-- dsec.lock files whose layers are kept for as long as the file is there.
CREATE TABLE locks (
  path TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE lock_layers (
  path  TEXT NOT NULL REFERENCES locks (path) ON DELETE CASCADE,
  layer TEXT NOT NULL,
  PRIMARY KEY (path, layer)
) WITHOUT ROWID;
)sql",
    R"sql(
-- Where data blobs come from that are loaded while they are used: what is not in the cache is read there. Rows stay
-- when the blob has come wholly and is a file of the store.
CREATE TABLE blob_sources (
  blob         TEXT NOT NULL REFERENCES blobs (digest) ON DELETE CASCADE,
  registry     TEXT NOT NULL,     -- URL
  chunks       TEXT NOT NULL,     -- digest of the blob with its chunk digests, which is in the store; a layer may lie
  allow_any_fs INTEGER NOT NULL,  -- 1: it was named with --allow-any-fs
  PRIMARY KEY (blob, registry, chunks)
) WITHOUT ROWID;
)sql",
    R"sql(
-- Registries that had a layer when it was pulled from there or published to there: where evicted data comes from again.
CREATE TABLE layer_sources (
  layer        TEXT NOT NULL REFERENCES layers (digest) ON DELETE CASCADE,
  registry     TEXT NOT NULL,     -- URL
  allow_any_fs INTEGER NOT NULL,  -- 1: it was named with --allow-any-fs
  PRIMARY KEY (layer, registry)
) WITHOUT ROWID;

-- Layers that stay with all their data.
CREATE TABLE pins (
  layer TEXT PRIMARY KEY REFERENCES layers (digest) ON DELETE CASCADE
) WITHOUT ROWID;
)sql",
    R"sql(
-- Bytes of the blob as who names it with these chunk digests gives them: another layer may lie about its size.
ALTER TABLE blob_sources ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE blob_sources SET size = (SELECT size FROM blobs WHERE digest = blob);
)sql",
};

}  // namespace dsec::registry
