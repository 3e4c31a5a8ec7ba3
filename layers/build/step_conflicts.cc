#include "layers/build/step_conflicts.h"

#include "core/base/error.h"

namespace dsec::layers {
namespace {

std::string described(const StackLookup::Found& found) {
  if (found.inode.is_directory()) return "a directory";
  if (found.inode.is_symlink()) return "a symlink to " + quote(found.target);
  return found.inode.is_file() ? "a file" : "a special file";
}

// Nothing lies below a name that the layers below do not have.
void check_folder(ErofsImage& image, const ErofsInode& folder, const std::string& prefix, StackLookup& below) {
  for (const ErofsDirEntry& item : image.list(folder)) {
    const std::string path = prefix + item.name;
    const std::optional<StackLookup::Found> found = below.find(path);
    if (!found) continue;
    const ErofsInode inode = image.inode(item.nid);
    if (inode.is_directory() != found->inode.is_directory())
      throw usage_error(std::string(inode.is_directory() ? "a directory" : "a file") + " would take the place of " +
                        quote("/" + path) + ", which is " + described(*found) + " in the layers below")
          .hint(found->inode.is_symlink()     ? "write the path that the symlink leads to"
                : found->inode.is_directory() ? "end the path with '/' to copy into it"
                                              : "name another path, or remove what is there by a `run` step first");
    if (inode.is_directory()) check_folder(image, inode, path + "/", below);
  }
}

}  // namespace

void refuse_conflicts(const engine::StoredLayer& step, StackLookup& below, engine::LayerStore& store) {
  for (ErofsImage& image : open_images(step, store, ImageData::Unwanted)) check_folder(image, image.root(), "", below);
}

}  // namespace dsec::layers
