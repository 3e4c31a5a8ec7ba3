#include "registry/store/verify.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <set>

#include "core/base/directory_names.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/engine/mapped_blob.h"
#include "registry/store/chunk_digests.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kReadSize = 1 << 20;

/// What one pass over a file tells.
struct Reading {
  std::uint64_t size = 0;
  std::optional<Digest> digest;
  std::size_t chunk_size = 0;  ///< of `chunks`; 0: those were not asked for
  std::string chunks;          ///< as its chunks blob should be
};

// Whether a file is a blob of `size` bytes, and nothing but the hole that it may have behind it.
bool ends_as_blob(int file, std::uint64_t size) {
  struct stat status;
  if (::fstat(file, &status) != 0) throw system_error("stat a blob");
  const auto whole = static_cast<std::uint64_t>(status.st_size);
  if (!engine::fits_blob(whole, size)) return false;
  std::vector<char> rest(whole - size);
  const ssize_t got = ::pread(file, rest.data(), rest.size(), static_cast<off_t>(size));
  return got == static_cast<ssize_t>(rest.size()) && std::all_of(rest.begin(), rest.end(), [](char c) { return !c; });
}

Reading read_blob(const fs::path& path, std::uint64_t size, std::size_t chunk_size,
                  const std::function<void(std::uint64_t)>& advance) {
  const UniqueFd file = open_file(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<char> buffer(kReadSize);
  Reading reading;
  reading.chunk_size = chunk_size;
  Sha256 whole;
  // Of one that does not end where it should, all.
  const std::uint64_t most = ends_as_blob(file.get(), size) ? size : ~std::uint64_t{0};
  for (;;) {
    // Filled up to the end, so that chunk borders fall on multiples of their size in the buffer.
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), most - reading.size));
    std::size_t filled = 0;
    while (filled < wanted) {
      const ssize_t got = ::read(file.get(), buffer.data() + filled, wanted - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error("read " + quote(path.native()));
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
    }
    whole.update(buffer.data(), filled);
    for (std::size_t at = 0; chunk_size && at < filled; at += chunk_size)
      reading.chunks += raw_digest(Digest::of({buffer.data() + at, std::min(chunk_size, filled - at)}));
    reading.size += filled;
    advance(reading.size);
    if (filled < buffer.size()) break;
  }
  reading.digest = whole.finish();
  return reading;
}

class Verification {
 public:
  Verification(LocalStore& store, Progress& progress) : store_(store), progress_(progress) {}

  void layer(const Digest& digest) {
    const std::optional<std::string> text = manifest(digest);
    if (!text) return;  // removed since it was listed
    ++result_.layers;
    const std::size_t before = result_.problems.size();
    check(digest, *text);
    if (result_.problems.size() > before && !manifest(digest)) result_.problems.resize(before);
  }

  // Files that no layer names are none of a layer's problems, but their names promise their content all the same.
  void remaining_files() {
    for (const std::string& shelf : directory_names(store_.blob_root())) {
      // What a killed process left lies beside the shelves.
      if (!fs::is_directory(store_.blob_root() / shelf)) continue;
      for (const std::string& name : directory_names(store_.blob_root() / shelf)) {
        if (!Digest::valid_hex(name)) continue;
        const Digest digest = Digest::parse(name);
        if (seen_.contains(digest)) continue;
        try {
          const std::uint64_t size = fs::file_size(store_.blob_root() / shelf / name);
          blob("", {BlobRole::Meta, digest, recorded_size(digest).value_or(size)}, 0);
        } catch (const fs::filesystem_error&) {
          // gc took it meanwhile.
        }
      }
    }
  }

  // As the index has it.
  std::optional<std::uint64_t> recorded_size(const Digest& digest) {
    const auto index = store_.index().take();
    Statement query = index->prepare("SELECT size FROM blobs WHERE digest = ?");
    if (!query.bind(digest.hex()).step()) return std::nullopt;
    return static_cast<std::uint64_t>(query.number(0));
  }

  VerifyResult finish() { return std::move(result_); }

 private:
  std::optional<std::string> manifest(const Digest& layer) {
    const auto index = store_.index().take();
    Statement query = index->prepare("SELECT manifest FROM layers WHERE digest = ?");
    if (!query.bind(layer.hex()).step()) return std::nullopt;
    return query.text(0);
  }

  void check(const Digest& digest, const std::string& text) {
    if (Digest::of(text) != digest) {
      problem(digest.brief(), std::nullopt, "its manifest in the index has other bytes");
      return;
    }
    try {
      const LayerManifest manifest = LayerManifest::parse(text, digest.str());
      const std::string name = manifest.name.str() + " " + digest.brief();
      for (const LayerImage& image : manifest.images) this->image(name, image);
    } catch (const Error& error) {
      problem(digest.brief(), std::nullopt, error.message());
    }
  }

  void image(const std::string& layer, const LayerImage& image) {
    const Blob* const data = image.find(BlobRole::Data);
    const Blob* const chunks = image.find(BlobRole::Chunks);
    for (const Blob& blob : image.blobs) {
      if (&blob == data && !store_.has_blob(blob.digest) && store_.on_demand(blob.digest)) {
        if (left_out_.insert(blob.digest).second) ++result_.on_demand;
        continue;
      }
      const bool compare = data == &blob && chunks;
      const auto chunk_size = compare ? chunk_size_of(blob.size, chunks->size) : std::nullopt;
      const Reading* const reading = this->blob(layer, blob, chunk_size.value_or(0));
      if (!reading || !compare) continue;
      const fs::path file = store_.blob_file(chunks->digest);
      std::error_code missing;
      if (fs::exists(file, missing) && (!chunk_size || read_file(file) != reading->chunks))
        problem(layer, chunks->digest, "does not fit the data it is about");
    }
  }

  // The reading of a good blob; null when something is wrong. A blob that several layers have is read once for each
  // size of chunks that they give it.
  const Reading* blob(const std::string& layer, const Blob& blob, std::size_t chunk_size) {
    const auto known = seen_.find(blob.digest);
    const bool anew = known == seen_.end();
    if (!anew && !known->second.digest) {
      problem(layer, blob.digest, "is damaged or missing as well");
      return nullptr;
    }
    if (!anew && (chunk_size == 0 || known->second.chunk_size == chunk_size)) return &known->second;
    Reading& reading = seen_[blob.digest];
    const std::string step = "verify " + blob.digest.brief();
    progress_.begin(step);
    try {
      Reading found = read_blob(store_.blob_path(blob.digest), blob.size, chunk_size,
                                [&](std::uint64_t done) { progress_.advance(step, done, blob.size); });
      result_.blobs += anew;
      result_.bytes += found.size;
      if (found.size != blob.size)
        damaged(layer, blob.digest,
                "has " + std::to_string(found.size) + " bytes instead of " + std::to_string(blob.size));
      else if (found.digest != blob.digest)
        damaged(layer, blob.digest, "has other bytes: " + found.digest->str());
      else
        reading = std::move(found);
    } catch (const Error& error) {
      problem(layer, blob.digest, error.message());
    }
    progress_.end(step, reading.digest ? format_size(reading.size) : "bad");
    return reading.digest ? &reading : nullptr;
  }

  void damaged(const std::string& layer, const Digest& digest, std::string what) {
    store_.index().take()->prepare("UPDATE blobs SET damaged = 1 WHERE digest = ?").bind(digest.hex()).run();
    problem(layer, digest, std::move(what));
  }

  void problem(std::string layer, std::optional<Digest> digest, std::string what) {
    result_.problems.push_back({std::move(layer), std::move(digest), std::move(what)});
  }

  LocalStore& store_;
  Progress& progress_;
  std::map<Digest, Reading> seen_;
  std::set<Digest> left_out_;
  VerifyResult result_;
};

}  // namespace

VerifyResult verify_store(LocalStore& store, std::span<const Digest> layers, Progress& progress) {
  return attempt("cannot verify the store", [&] {
    Verification verification(store, progress);
    if (!layers.empty()) {
      for (const Digest& layer : layers) verification.layer(layer);
      return verification.finish();
    }
    std::vector<Digest> all;
    {
      const auto index = store.index().take();
      Statement query = index->prepare("SELECT digest FROM layers ORDER BY kind, name, digest");
      while (query.step()) all.push_back(Digest::parse(query.text(0)));
    }
    for (const Digest& layer : all) verification.layer(layer);
    verification.remaining_files();
    return verification.finish();
  });
}

}  // namespace dsec::registry
