#include "registry/index.h"

#include "core/base/error.h"
#include "registry/oci/access.h"
#include "registry/oci/artifact.h"
#include "registry/oci/reference.h"
#include "registry/oci/referrers.h"
#include "registry/publication.h"

namespace dsec::registry {
namespace {

// The image may have come from a mirror.
void check_parts(OciClient& client, const std::string& repository, const DataIndex& index) {
  for (const DataIndex::Part& part : index.parts) {
    const auto size = client.blob_size(repository, part.blob);
    if (!size) throw failure("the repository does not have layer " + part.blob.str() + " of the image");
    if (*size != part.size)
      throw failure("the repository's layer " + part.blob.str() + " has " + std::to_string(*size) +
                    " bytes instead of " + std::to_string(part.size));
  }
}

// How much of the data stays in the image.
std::uint64_t put_index(OciClient& client, const std::string& repository, const DataIndex& index,
                        const engine::RemoteImage::Root& image) {
  if (client.blob_size(repository, index.data)) return 0;
  check_parts(client, repository, index);
  for (const std::string& content : {std::string(kEmptyConfig), index.bytes()})
    if (const Digest digest = Digest::of(content); !client.blob_size(repository, digest))
      client.push_blob(repository, digest, {content, -1, content.size()}, [](std::uint64_t) {});
  const std::string type = image.media_type.empty() ? kImageManifestType : image.media_type;
  push_referrer(client, repository, index_tag(index.data), index_artifact(index, {image.digest, image.size, type}));
  return index.size;
}

}  // namespace

RegistryAddress registry_beside(const std::string& image) {
  const ImageReference reference = ImageReference::parse(image);
  return RegistryAddress::parse("oci://" + reference.host + "/" + reference.repository);
}

IndexResult publish_index(LocalStore& store, const engine::ImageIndex& made, const std::string& tag,
                          const RegistryAddress& address, Progress& progress) {
  const CatalogTag name{made.layer.name, tag};
  IndexResult result;
  OciAccess access(Config::load(), [&](const std::string& message) { progress.warn(message); });
  attempt("cannot index " + name.str() + " in " + address.shown(), [&] {
    for (const DataIndex& index : made.indexes)
      result.bytes_in_image += put_index(access.at(address.host), address.repository, index, made.image);
  });
  // The publisher finds the data by its index, and copies what is left.
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Write, progress);
  const auto contents = contents_of(store);
  result.bytes_copied = Publication(*registry, *contents, {}, progress)
                            .run({{name.str(), made.layer.digest(), made.layer, {name}}}, store.home().host_id())
                            .bytes_copied;
  // A gc that had not seen the layer yet may have taken them for what a killed command left.
  attempt("cannot index " + name.str() + " in " + address.shown(), [&] {
    for (const DataIndex& index : made.indexes)
      put_index(access.at(address.host), address.repository, index, made.image);
  });
  return result;
}

}  // namespace dsec::registry
