#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/remote_image.h"
#include "core/model/data_index.h"
#include "layers/archive/archive_source.h"
#include "layers/oci/image_documents.h"
#include "layers/oci/image_files.h"
#include "layers/source.h"

namespace dsec::layers {

/// The chosen image, its documents verified, its layers only found yet.
struct FoundImage {
  ImageDocument document;
  struct Layer {
    std::string name;  ///< for messages
    FileSpan archive;
    std::optional<Digest> packed;  ///< what the manifest says of the bytes; a docker archive says nothing
  };
  std::vector<Layer> layers;           ///< bottom to top, as many as the document has diff_ids
  std::optional<Descriptor> manifest;  ///< of the image; a docker archive has none
};

/// In an OCI image layout (image-spec 1.1): an image named `reference` in index.json (or by digest; empty: the only
/// one) for `wanted` where there is a choice.
FoundImage find_in_layout(const ImageFiles& files, const std::string& reference, const Platform& wanted);
/// The nearest of these manifests and indexes.
FoundImage find_image(const ImageFiles& files, const std::vector<Descriptor>& candidates, const Platform& wanted);
/// In what `docker save` writes: an image of manifest.json with the tag `reference` (empty: the only one).
FoundImage find_in_docker_archive(const ImageFiles& files, const std::string& reference);

/// `oci-layout:DIR[:REF]`, `oci-archive:FILE[:REF]`, `docker-archive:FILE[:REF]` and
/// `docker://HOST/REPO[:TAG|@DIGEST]`.
class ImageSource : public Source {
 public:
  enum class Form { Layout, Archive, DockerArchive, Registry };
  /// `location` is PATH or PATH:REF; the longest part that exists is the path.
  ImageSource(Form form, const std::string& location, std::filesystem::path spool);
  /// Of a registry. Layers are kept in unlinked files in `spool` until the layer is made.
  ImageSource(std::string reference, engine::OpenRemoteImage open, std::filesystem::path spool);
  ~ImageSource() override;

  SourceFacts examine(const SourceOptions& options, Progress& progress) override;
  void emit(std::size_t image, TreeSink& sink) override;

  /// To be called before examine(), which then refuses an image that has compressed layers: contents are to be read
  /// where they lie.
  void require_plain_layers() { plain_layers_ = true; }
  /// Of an image that was examined so: its manifest, its layers, and what lies where in them.
  const Descriptor& manifest() const { return manifest_.value(); }
  const std::vector<DataIndex::Part>& layers() const { return layers_; }
  const ArchiveStack& stack() const { return *stack_; }

 private:
  void check_plain(const FoundImage& image) const;
  FoundImage find(const SourceOptions& options, const Platform& wanted, Progress& progress);

  Form form_;
  std::filesystem::path path_, spool_;
  std::string reference_;
  engine::OpenRemoteImage open_;
  std::unique_ptr<engine::RemoteImage> remote_;  // files_ use it
  std::unique_ptr<ImageFiles> files_;
  std::unique_ptr<ArchiveStack> stack_;
  bool plain_layers_ = false;
  std::optional<Descriptor> manifest_;
  std::vector<DataIndex::Part> layers_;
};

}  // namespace dsec::layers
