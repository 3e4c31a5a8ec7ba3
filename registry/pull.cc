#include "registry/pull.h"

#include <sys/statvfs.h>

#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "registry/layout/prefetch_list.h"
#include "registry/registries.h"
#include "registry/registry.h"
#include "registry/store/chunk_digests.h"
#include "registry/store/working_set.h"

namespace dsec::registry {
namespace {

// A manifest may claim any size; a file with a hole may even have it.
void check_space(const LocalStore& store, const std::vector<Blob>& blobs) {
  std::uint64_t needed = 0;
  for (const Blob& blob : blobs) {
    if (blob.size > std::numeric_limits<std::uint64_t>::max() - needed)
      throw failure("the sizes of its blobs overflow");
    needed += blob.size;
  }
  struct statvfs space;
  if (::statvfs(store.blob_root().c_str(), &space) != 0) throw system_error("statvfs of the store");
  if (const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize; needed > free)
    throw failure("it needs " + format_size(needed) + ", and the store has " + format_size(free) + " left")
        .hint("dsec gc, or more space for " + quote(store.home().root().native()));
}

class Pulling {
 public:
  Pulling(LocalStore& store, Registry& registry, PullMode mode, std::string step, Progress& progress)
      : store_(store),
        registry_(registry),
        mode_(mode),
        step_(std::move(step)),
        progress_(progress),
        session_(store.begin_session()) {}

  PullResult run(const Digest& digest, const LayerManifest& manifest, const LayerRef& ref) {
    total_ = manifest.total_size();
    progress_.begin(step_);
    std::set<Digest> seen;
    std::vector<Blob> missing;
    for (const LayerImage& image : manifest.images)
      for (const Blob& blob : image.blobs)
        if (seen.insert(blob.digest).second && !find_blob(blob) && !leave_blob(image, blob)) missing.push_back(blob);
    check_space(store_, missing);
    if (on_demand_) keep_prefetch_list(digest, manifest);
    for (const Blob& blob : missing) copy_blob(blob);
    for (const auto& [blob, chunks] : left_) hold_left(blob, chunks);
    store_.add(manifest, "", engine::Trust::Foreign, *session_);
    note_source(store_, digest, {registry_.address().url(), registry_.address().allow_any_fs});
    if (ref.tag) store_.tag(digest, *ref.name, *ref.tag);
    progress_.end(step_, copied_ ? format_size(copied_) : "was there already");
    return {store_.get(LayerRef::of(digest)), copied_, present_, in_place_, on_demand_};
  }

 private:
  // True when nothing of the blob has to be copied.
  bool find_blob(const Blob& blob) {
    if (session_->hold(blob.digest)) {
      present_ += blob.size;
      return true;
    }
    const auto path = registry_.in_place(blob);
    if (!path) return false;
    if (!store_.hold_in_place(*session_, blob, *path))
      throw failure("blob " + blob.digest.brief() + " of the registry has not the " + std::to_string(blob.size) +
                    " bytes that the manifest gives");
    in_place_ += blob.size;
    return true;
  }

  // True for a data blob whose pieces are to come when they are read. Never for one whose file is there and damaged: it
  // would be mounted as it is.
  bool leave_blob(const LayerImage& image, const Blob& blob) {
    const Blob* const chunks = image.find(BlobRole::Chunks);
    if (mode_ != PullMode::OnDemand || blob.role != BlobRole::Data || !chunks || store_.has_blob(blob.digest))
      return false;
    if (!chunk_size_of(blob.size, chunks->size))
      throw failure("the manifest gives blob " + blob.digest.brief() + " chunk digests that cannot be its own");
    // What is larger would keep the loader from others, and comes whole.
    if (chunks->size > kLargestChunkDigests) return false;
    left_.emplace_back(blob, chunks->digest);
    on_demand_ += blob.size;
    return true;
  }

  // A manifest may give it any size. The digest of the last chunk, which must end with the blob, fixes it for whoever
  // names the blob with these chunk digests.
  void hold_left(const Blob& blob, const Digest& chunks) {
    const auto known = store_.on_demand(blob.digest, chunks);
    if (!known || known->blob.size != blob.size) check_end(blob, chunks);
    const RegistryAddress& address = registry_.address();
    store_.hold_on_demand(*session_, blob, chunks, {address.url(), address.allow_any_fs});
  }

  void check_end(const Blob& blob, const Digest& chunks) {
    attempt("cannot load blob " + blob.digest.brief() + " on demand", [&] {
      const ChunkDigests digests(read_file(store_.blob_path(chunks), kLargestChunkDigests), blob.size);
      if (digests.count() == 0) return;
      const std::uint64_t last = digests.count() - 1;
      std::vector<std::byte> bytes(digests.size_of(last));
      try {
        registry_.read_range(blob, last * digests.chunk_size(), bytes);
      } catch (Error& error) {
        throw std::move(error.hint("pull it without --on-demand, which needs no parts of blobs"));
      }
      if (!digests.fits(last, bytes))
        throw failure("its last bytes are not those of the layer, which gives it " + std::to_string(blob.size))
            .hint("pull it without --on-demand, which tells what is wrong with it");
    });
  }

  // Without one all goes on: it only tells what to fetch first.
  void keep_prefetch_list(const Digest& digest, const LayerManifest& manifest) {
    try {
      if (const auto text = registry_.prefetch_list(digest))
        store_.keep_prefetch_list(PrefetchList::parse(*text, digest, manifest), manifest);
    } catch (const Error& error) {
      progress_.warn(error.message());
    }
  }

  void copy_blob(const Blob& blob) {
    attempt("cannot copy blob " + blob.digest.brief(), [&] {
      TempFile file = session_->new_file();
      const std::uint64_t before = copied_;
      const Digest found = registry_.copy_blob(
          blob, file.fd(), [&](std::uint64_t done) { progress_.advance(step_, present_ + before + done, total_); });
      if (found != blob.digest)
        throw failure("the registry's copy is damaged: its bytes have " + found.str())
            .hint(registry_.address().kind == RegistryAddress::Kind::Oci
                      ? "publish the layer to another path of the registry, from a host that has it"
                      : "dsec registry check, which finds all such files");
      session_->adopt(std::move(file), blob.role, found);
      copied_ += blob.size;
    });
  }

  LocalStore& store_;
  Registry& registry_;
  const PullMode mode_;
  std::string step_;
  Progress& progress_;
  std::unique_ptr<engine::BlobSession> session_;
  std::vector<std::pair<Blob, Digest>> left_;  ///< what comes when it is read, and its chunk digests
  std::uint64_t total_ = 0;
  std::uint64_t copied_ = 0, present_ = 0, in_place_ = 0, on_demand_ = 0;
};

}  // namespace

PullResult pull(LocalStore& store, const LayerRef& ref, const RegistryAddress& address, Progress& progress,
                PullMode mode) {
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Read, progress);
  const std::optional<Digest> digest = registry->resolve(ref);
  if (!digest) throw not_in_registry(*registry, ref);
  return attempt("cannot pull " + ref.str() + " from " + address.shown(), [&] {
    const LayerManifest manifest = registry->manifest(*digest);
    if (ref.name && manifest.name.kind != ref.name->kind)
      throw failure("the registry answers with the " + std::string(to_string(manifest.name.kind)) + " layer " +
                    quote(manifest.name.str()));
    // What a snapshot stands on first; held until the snapshot is there, which then holds it.
    std::vector<std::unique_ptr<Pulling>> below;
    std::uint64_t copied = 0, present = 0, in_place = 0, on_demand = 0;
    for (const Digest& lower : manifest.lowers) {
      const LayerRef layer = LayerRef::of(lower);
      const std::optional<engine::StoredLayer> stored = store.find(layer);
      below.push_back(
          std::make_unique<Pulling>(store, *registry, mode, "pull " + lower.brief() + " below it", progress));
      const PullResult part = below.back()->run(lower, stored ? stored->manifest : registry->manifest(lower), layer);
      copied += part.bytes_copied;
      present += part.bytes_present;
      in_place += part.bytes_in_place;
      on_demand += part.bytes_on_demand;
    }
    PullResult result = Pulling(store, *registry, mode, "pull " + ref.str(), progress).run(*digest, manifest, ref);
    result.bytes_copied += copied;
    result.bytes_present += present;
    result.bytes_in_place += in_place;
    result.bytes_on_demand += on_demand;
    return result;
  });
}

namespace {

// The blob, and what others give another size who name it with other chunk digests: who of them lies shows when it has
// come.
std::vector<OnDemandBlob> claims_of(LocalStore& store, const OnDemandBlob& blob) {
  std::vector<OnDemandBlob> claims{blob};
  std::set<Digest> others;
  {
    const auto index = store.index().take();
    Statement query = index->prepare("SELECT chunks FROM blob_sources WHERE blob = ? AND size <> ?");
    query.bind(blob.blob.digest.hex()).bind(static_cast<std::int64_t>(blob.blob.size));
    while (query.step()) others.insert(Digest::parse(query.text(0)));
  }
  for (const Digest& chunks : others)
    if (auto claim = store.on_demand(blob.blob.digest, chunks)) claims.push_back(std::move(*claim));
  return claims;
}

void fetch_from(LocalStore& store, const Blob& blob, const BlobOrigin& origin, const std::string& step,
                Progress& progress) {
  RegistryAddress address = find_registry(Config::load(), origin.registry);
  address.allow_any_fs = address.allow_any_fs || origin.allow_any_fs;
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Read, progress);
  const auto session = store.begin_session();
  TempFile file = session->new_file();
  const Digest found =
      registry->copy_blob(blob, file.fd(), [&](std::uint64_t done) { progress.advance(step, done, blob.size); });
  if (found != blob.digest)
    throw failure("the copy of registry " + address.shown() + " is damaged: its bytes have " + found.str());
  session->adopt(std::move(file), BlobRole::Data, found);
  progress.end(step, format_size(blob.size));
}

}  // namespace

void fetch_whole(LocalStore& store, const OnDemandBlob& blob, Progress& progress) {
  const std::string step = "fetch the rest of " + blob.layer;
  progress.begin(step);
  attempt("cannot fetch blob " + blob.blob.digest.brief() + " of layer " + blob.layer, [&] {
    std::optional<Error> last;
    for (const OnDemandBlob& claim : claims_of(store, blob)) {
      for (const BlobOrigin& origin : claim.origins) {
        try {
          check_space(store, {claim.blob});
          return fetch_from(store, claim.blob, origin, step, progress);
        } catch (const Error& error) {
          last = error;
        }
      }
    }
    throw last ? std::move(*last) : failure("no registry is known that has it");
  });
}

}  // namespace dsec::registry
