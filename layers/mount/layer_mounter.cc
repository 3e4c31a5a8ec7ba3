#include "layers/mount/layer_mounter.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>

#include "core/base/error.h"
#include "core/base/mount.h"
#include "layers/compose/conflicts.h"
#include "layers/compose/foreign_check.h"
#include "layers/compose/stack_record.h"
#include "layers/disk/disk_image.h"
#include "layers/mount/composed_mount.h"
#include "layers/mount/erofs_mount.h"
#include "layers/mount/pinned_namespace.h"

namespace dsec::layers {
namespace {

using engine::StoredLayer;

// One image of a stack and the name of its mount.
struct WantedImage {
  std::string name;
  const LayerImage* image;
  bool on_demand = false;  ///< its data is not in the store
  UniqueFd data = {};      ///< of such an image, when it was opened already
};

// Bottom to top. Overlayfs refuses the same directory twice; the lower of two equal images adds nothing, since all its
// paths exist in the upper one too.
std::vector<WantedImage> wanted_images(std::span<const StoredLayer> bottom_to_top) {
  std::vector<WantedImage> images;
  for (const StoredLayer& layer : bottom_to_top)
    for (const LayerImage& image : layer.manifest.images) {
      std::string name = image.blob(BlobRole::Meta).digest.hex();
      std::erase_if(images, [&](const WantedImage& other) { return other.name == name; });
      images.push_back({std::move(name), &image});
    }
  return images;
}

const StoredLayer* find_disk(std::span<const StoredLayer> layers) {
  for (const StoredLayer& layer : layers)
    if (layer.manifest.is_disk()) return &layer;
  return nullptr;
}

void refuse_disks(std::span<const StoredLayer> layers) {
  if (const StoredLayer* const layer = find_disk(layers))
    throw usage_error(layer->manifest.name.str() + " is the disk of a machine, whose files only its own system reads")
        .hint("--backend fullvm");
}

constexpr std::size_t kLowerLimit = 500;  // OVL_MAX_STACK of fs/overlayfs/super.c

// The mount of a stack's restored directories lies beside those of images.
constexpr std::string_view kFixupPrefix = "fixup-";
// Before the instance of the loader that serves the data, and the image's own name: it is of no use with another one.
constexpr std::string_view kOnDemandPrefix = "on-demand-";

std::string on_demand_name(const std::string& instance, const std::string& image) {
  return std::string(kOnDemandPrefix) + instance + "-" + image;
}

[[noreturn]] void throw_conflicts(const std::vector<engine::StackConflict>& conflicts) {
  const engine::StackConflict& first = conflicts.front();
  Error error = usage_error(first.upper + " has " + first.what + " of " + first.lower + " at " + quote(first.path));
  if (conflicts.size() > 1)
    error.context(std::to_string(conflicts.size()) + " paths of the layers contradict each other");
  throw error.context("the layers cannot be stacked")
      .hint("accept it in dsec.yaml if the upper layer is meant to win, or build that layer on the lower one");
}

class ErofsLayerMounter : public engine::LayerMounter {
 public:
  ErofsLayerMounter(const engine::Home& home, engine::LayerStore& store, engine::BlobLoader* loader)
      : store_(store), loader_(loader), namespace_(home.run()), records_(home.cache(), store) {}

  engine::LayerStack open(std::span<const StoredLayer> bottom_to_top, bool accept_conflicts) override {
    refuse_disks(bottom_to_top);
    std::vector<WantedImage> images = wanted_images(bottom_to_top);
    const std::unique_ptr<engine::BlobLoader::Visit> loader = visit_if_needed(images);
    const bool checks = !std::all_of(bottom_to_top.begin(), bottom_to_top.end(),
                                     [&](const StoredLayer& layer) { return layer.trusted || is_checked(layer); });
    // What is to be fetched first is on its way then while the checks run.
    if (checks)
      for (WantedImage& image : images)
        if (image.on_demand) image.data = open_data(image, *loader);
    for (const StoredLayer& layer : bottom_to_top)
      if (!layer.trusted) check_once(layer);
    const auto record = records_.of(bottom_to_top);
    if (record->conflicts > 0 && !accept_conflicts) throw_conflicts(find_conflicts(store_, bottom_to_top));

    std::vector<std::string> names;
    for (const WantedImage& image : images) names.push_back(image.name);
    if (record->fixup) names.push_back(std::string(kFixupPrefix) + record->key);
    if (names.size() > kLowerLimit)
      throw failure("the layers have " + std::to_string(names.size()) + " images, and overlayfs stacks at most " +
                    std::to_string(kLowerLimit))
          .hint("import with a larger --collapse-limit makes fewer of them");
    engine::LayerStack stack{namespace_.clone(names), {}};
    for (std::size_t i = 0; i < images.size(); ++i)
      if (!stack.lowers[i]) stack.lowers[i] = mount_image(images[i], loader.get());
    if (loader) stack.loading = count_loading(images, *loader);
    if (record->fixup && !stack.lowers.back()) stack.lowers.back() = mount_fixup(names.back(), *record, bottom_to_top);
    return stack;
  }

  engine::LayerStack files(std::span<const StoredLayer> bottom_to_top, bool accept_conflicts) override {
    refuse_disks(bottom_to_top);
    for (const StoredLayer& layer : bottom_to_top)
      if (!layer.trusted) check_once(layer);
    auto record = records_.of(bottom_to_top);
    if (record->conflicts > 0 && !accept_conflicts) throw_conflicts(find_conflicts(store_, bottom_to_top));
    engine::LayerStack stack;
    for (const WantedImage& image : wanted_images(bottom_to_top)) {
      engine::ImageFiles files{store_.blob_path(image.image->blob(BlobRole::Meta).digest), {}};
      if (const Blob* const data = image.image->find(BlobRole::Data)) {
        if (!store_.has_blob(data->digest))
          throw failure("image " + image.image->blob(BlobRole::Meta).digest.brief() +
                        " is loaded on demand, which a kernel of the sandbox's own cannot do")
              .hint("dsec pull its layer whole");
        files.data = store_.blob_path(data->digest);
      }
      stack.images.push_back(std::move(files));
    }
    if (record->fixup && !std::filesystem::exists(*record->fixup)) record = records_.again(bottom_to_top);
    if (record->fixup) stack.images.push_back({*record->fixup, {}});
    return stack;
  }

  engine::BootDisk disk(std::span<const StoredLayer> bottom_to_top) override {
    const StoredLayer* const layer = find_disk(bottom_to_top);
    if (!layer)
      throw usage_error(bottom_to_top.front().manifest.name.str() + " is no disk that a machine could start from")
          .hint("dsec import base/NAME disk:FILE, or dsec vm build, makes one");
    if (bottom_to_top.size() > 1)
      throw usage_error(layer->manifest.name.str() + " is a disk, on which no other layer can be stacked");
    const LayerImage& image = layer->manifest.images.front();
    engine::BootDisk disk{store_.blob_path(image.blob(BlobRole::Disk).digest), *image.disk};
    check_disk(disk.file, disk.form);
    return disk;
  }

  std::vector<engine::StackConflict> conflicts(std::span<const StoredLayer> bottom_to_top) override {
    return find_conflicts(store_, bottom_to_top);
  }

  void mount_at(std::span<const StoredLayer> bottom_to_top, const std::filesystem::path& target) override {
    attempt("cannot mount layers at " + quote(target.native()),
            [&] { mount_composed(open(bottom_to_top, true).lowers, target); });
  }

  void unmount_at(const std::filesystem::path& target) override { unmount_composed(target); }

  std::size_t unmount_unused(std::span<const Digest> needed) override {
    std::set<std::string> keep;
    for (const Digest& digest : needed) keep.insert(digest.hex());
    const std::string instance = loader_ ? loader_->running() : std::string();
    const auto unused = [&](const std::string& name) {
      if (name.starts_with(kOnDemandPrefix)) {
        const std::string image = name.substr(name.rfind('-') + 1);
        return !keep.contains(image) || name != on_demand_name(instance, image);
      }
      if (!name.starts_with(kFixupPrefix)) return !keep.contains(name);
      const std::vector<std::string> below = records_.images_of(name.substr(kFixupPrefix.size()));
      return below.empty() || !std::all_of(below.begin(), below.end(), [&](const auto& n) { return keep.contains(n); });
    };
    std::size_t count = 0;
    for (const std::string& name : namespace_.names())
      if (unused(name) && namespace_.remove(name) && !name.starts_with(kFixupPrefix)) ++count;
    namespace_.unpin_if_empty();
    records_.remove_old();
    if (loader_) loader_->release();
    return count;
  }

 private:
  bool is_checked(const StoredLayer& layer) {
    const std::lock_guard lock(mutex_);
    return checked_.contains(layer.digest);
  }

  // The caller may hold what the store said of the layer before somebody else, or this mounter, had checked it.
  void check_once(const StoredLayer& layer) {
    if (is_checked(layer)) return;
    const auto now = store_.find(LayerRef::of(layer.digest));
    if (!now || !now->trusted) check_foreign_layer(store_, layer);
    const std::lock_guard lock(mutex_);
    checked_.insert(layer.digest);
  }

  // The loader, when the data of an image is not here; such images are mounted under another name.
  std::unique_ptr<engine::BlobLoader::Visit> visit_if_needed(std::vector<WantedImage>& images) {
    std::unique_ptr<engine::BlobLoader::Visit> loader;
    for (WantedImage& image : images) {
      const Blob* const data = image.image->find(BlobRole::Data);
      if (!loader_ || !data || !image.image->find(BlobRole::Chunks) || store_.has_blob(data->digest)) continue;
      if (!loader) loader = loader_->visit();
      image.on_demand = true;
      image.name = on_demand_name(loader->instance(), image.name);
    }
    return loader;
  }

  static engine::LoadCount count_loading(std::span<const WantedImage> images, engine::BlobLoader::Visit& loader) {
    engine::LoadCount count{0, loader.counters(), {}};
    for (const WantedImage& image : images) {
      if (!image.on_demand) continue;
      const Blob& data = image.image->blob(BlobRole::Data);
      const std::uint64_t place = loader.counter(data.digest, image.image->blob(BlobRole::Chunks).digest);
      if (std::find(count.places.begin(), count.places.end(), place) != count.places.end()) continue;
      count.places.push_back(place);
      count.bytes += data.size;
    }
    return count;
  }

  static UniqueFd open_data(const WantedImage& wanted, engine::BlobLoader::Visit& loader) {
    return loader.open(wanted.image->blob(BlobRole::Data).digest, wanted.image->blob(BlobRole::Chunks).digest);
  }

  UniqueFd mount_image(const WantedImage& wanted, engine::BlobLoader::Visit* loader) {
    const Digest& meta = wanted.image->blob(BlobRole::Meta).digest;
    return attempt("cannot mount image " + meta.brief(), [&] {
      return namespace_.place(wanted.name, [&] {
        ErofsBlobs blobs{store_.blob_path(meta), {}};
        const Blob* const data = wanted.image->find(BlobRole::Data);
        UniqueFd file;
        if (data && wanted.on_demand) {
          if (!wanted.data) file = open_data(wanted, *loader);
          blobs.data = "/proc/self/fd/" + std::to_string((wanted.data ? wanted.data : file).get());
        } else if (data) {
          blobs.data = store_.blob_path(data->digest);
        }
        return mount_erofs(blobs);
      });
    });
  }

  UniqueFd mount_fixup(const std::string& name, const StackRecord& record, std::span<const StoredLayer> bottom_to_top) {
    return attempt("cannot restore the attributes of directories", [&] {
      return namespace_.place(name, [&] {
        if (!std::filesystem::exists(*record.fixup)) (void)records_.again(bottom_to_top);
        return mount_erofs({*record.fixup, {}});
      });
    });
  }

  engine::LayerStore& store_;
  engine::BlobLoader* const loader_;
  PinnedNamespace namespace_;
  StackRecords records_;
  std::mutex mutex_;  ///< of checked_
  std::set<Digest> checked_;
};

}  // namespace

std::unique_ptr<engine::LayerMounter> make_layer_mounter(const engine::Home& home, engine::LayerStore& store,
                                                         engine::BlobLoader* loader) {
  return std::make_unique<ErofsLayerMounter>(home, store, loader);
}

}  // namespace dsec::layers
