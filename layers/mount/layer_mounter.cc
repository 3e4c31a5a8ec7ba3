#include "layers/mount/layer_mounter.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/mount.h"
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

class ErofsLayerMounter : public engine::LayerMounter {
 public:
  ErofsLayerMounter(const engine::Home& home, engine::LayerStore& store)
      : home_(home), store_(store), namespace_(home.run()) {}

  engine::LayerStack open(std::span<const StoredLayer> bottom_to_top, bool /*accept_conflicts*/) override {
    const std::vector<WantedImage> images = wanted_images(bottom_to_top);
    std::vector<std::string> names;
    for (const WantedImage& image : images) names.push_back(image.name);
    engine::LayerStack stack{namespace_.clone(names)};
    for (std::size_t i = 0; i < images.size(); ++i)
      if (!stack.lowers[i]) stack.lowers[i] = mount_image(images[i]);
    return stack;
  }

  std::vector<engine::StackConflict> conflicts(std::span<const StoredLayer>) override { return {}; }

  void mount_at(std::span<const StoredLayer> bottom_to_top, const std::filesystem::path& target) override {
    attempt("cannot mount layers at " + quote(target.native()),
            [&] { mount_composed(open(bottom_to_top, true).lowers, target); });
  }

  void unmount_at(const std::filesystem::path& target) override { unmount_composed(target); }

  std::size_t unmount_unused(std::span<const Digest> needed) override {
    std::set<std::string> keep;
    for (const Digest& digest : needed) keep.insert(digest.hex());
    std::size_t count = 0;
    for (const std::string& name : namespace_.names())
      if (!keep.contains(name) && namespace_.remove(name)) ++count;
    namespace_.unpin_if_empty();
    return count;
  }

 private:
  UniqueFd mount_image(const WantedImage& wanted) {
    return attempt("cannot mount image " + wanted.name.substr(0, 12), [&] {
      return namespace_.place(wanted.name, [&] {
        ErofsBlobs blobs{store_.blob_path(wanted.image->blob(BlobRole::Meta).digest), {}};
        if (const Blob* data = wanted.image->find(BlobRole::Data)) blobs.data = store_.blob_path(data->digest);
        return mount_erofs(blobs);
      });
    });
  }

  engine::Home home_;
  engine::LayerStore& store_;
  PinnedNamespace namespace_;
};

}  // namespace

std::unique_ptr<engine::LayerMounter> make_layer_mounter(const engine::Home& home, engine::LayerStore& store) {
  return std::make_unique<ErofsLayerMounter>(home, store);
}

}  // namespace dsec::layers
