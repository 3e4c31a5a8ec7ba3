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

constexpr std::size_t kLowerLimit = 500;  // OVL_MAX_STACK of fs/overlayfs/super.c

// The mount of a stack's restored directories lies beside those of images.
constexpr std::string_view kFixupPrefix = "fixup-";

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
  ErofsLayerMounter(const engine::Home& home, engine::LayerStore& store)
      : store_(store), namespace_(home.run()), records_(home.cache(), store) {}

  engine::LayerStack open(std::span<const StoredLayer> bottom_to_top, bool accept_conflicts) override {
    for (const StoredLayer& layer : bottom_to_top)
      if (!layer.trusted) check_once(layer);
    const auto record = records_.of(bottom_to_top);
    if (record->conflicts > 0 && !accept_conflicts) throw_conflicts(find_conflicts(store_, bottom_to_top));

    const std::vector<WantedImage> images = wanted_images(bottom_to_top);
    std::vector<std::string> names;
    for (const WantedImage& image : images) names.push_back(image.name);
    if (record->fixup) names.push_back(std::string(kFixupPrefix) + record->key);
    if (names.size() > kLowerLimit)
      throw failure("the layers have " + std::to_string(names.size()) + " images, and overlayfs stacks at most " +
                    std::to_string(kLowerLimit))
          .hint("import with a larger --collapse-limit makes fewer of them");
    engine::LayerStack stack{namespace_.clone(names)};
    for (std::size_t i = 0; i < images.size(); ++i)
      if (!stack.lowers[i]) stack.lowers[i] = mount_image(images[i]);
    if (record->fixup && !stack.lowers.back()) stack.lowers.back() = mount_fixup(names.back(), *record, bottom_to_top);
    return stack;
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
    const auto unused = [&](const std::string& name) {
      if (!name.starts_with(kFixupPrefix)) return !keep.contains(name);
      const std::vector<std::string> below = records_.images_of(name.substr(kFixupPrefix.size()));
      return below.empty() || !std::all_of(below.begin(), below.end(), [&](const auto& n) { return keep.contains(n); });
    };
    std::size_t count = 0;
    for (const std::string& name : namespace_.names())
      if (unused(name) && namespace_.remove(name) && !name.starts_with(kFixupPrefix)) ++count;
    namespace_.unpin_if_empty();
    records_.remove_old();
    return count;
  }

 private:
  // The caller may hold what the store said of the layer before somebody else, or this mounter, had checked it.
  void check_once(const StoredLayer& layer) {
    {
      const std::lock_guard lock(mutex_);
      if (checked_.contains(layer.digest)) return;
    }
    const auto now = store_.find(LayerRef::of(layer.digest));
    if (!now || !now->trusted) check_foreign_layer(store_, layer);
    const std::lock_guard lock(mutex_);
    checked_.insert(layer.digest);
  }

  UniqueFd mount_image(const WantedImage& wanted) {
    return attempt("cannot mount image " + wanted.name.substr(0, 12), [&] {
      return namespace_.place(wanted.name, [&] {
        ErofsBlobs blobs{store_.blob_path(wanted.image->blob(BlobRole::Meta).digest), {}};
        if (const Blob* data = wanted.image->find(BlobRole::Data)) blobs.data = store_.blob_path(data->digest);
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
  PinnedNamespace namespace_;
  StackRecords records_;
  std::mutex mutex_;  ///< of checked_
  std::set<Digest> checked_;
};

}  // namespace

std::unique_ptr<engine::LayerMounter> make_layer_mounter(const engine::Home& home, engine::LayerStore& store) {
  return std::make_unique<ErofsLayerMounter>(home, store);
}

}  // namespace dsec::layers
