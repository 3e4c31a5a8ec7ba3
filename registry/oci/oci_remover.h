#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "registry/collect/remover.h"
#include "registry/oci/client.h"

namespace dsec::registry {

/// Makes a layer known under a tag of a repository that has its blobs, but for those that are `indexed`.
void put_artifact(OciClient& client, const std::string& repository, const std::string& tag,
                  const LayerManifest& manifest, const std::set<Digest>& indexed = {});
/// The same in the repository of all layers, which has or indexes its data.
void put_on_shelf(OciClient& client, const std::string& shelf, const LayerManifest& manifest);
/// The layers that the repository of all layers holds; sorted.
std::vector<Digest> shelved_layers(OciClient& client, const std::string& shelf);
/// That a registry tells nobody, or not us, which repositories it has: Docker Hub and GHCR, for two.
class NoCatalogue : public Error {
 public:
  NoCatalogue(const std::string& host, const std::string& shelf);
};

/// Repositories of layer names below that of all layers. Throws Error, and NoCatalogue.
std::vector<LayerName> layer_names(OciClient& client, const std::string& shelf);

/// Notes as artifacts of the repository of all layers, "condemned/x.json" with the tag "condemned-x". There are no
/// leases: what is pushed twice at once is the same both times, and nothing tells how old a lease is.
class OciNotes : public Notes {
 public:
  OciNotes(OciClient& client, std::string shelf) : client_(client), shelf_(std::move(shelf)) {}

  std::vector<std::string> names(std::string_view folder) const override;
  std::optional<std::string> read(const std::string& name) const override;
  void write(const std::string& name, const std::string& text, const std::string& author) const override;
  void remove(const std::string& name) const override;
  std::optional<std::chrono::system_clock::time_point> written(const std::string&) const override { return {}; }

 private:
  OciClient& client_;
  const std::string shelf_;
};

class OciRemover : public Remover {
 public:
  OciRemover(OciClient& client, std::string shelf)
      : client_(client), shelf_(std::move(shelf)), notes_(client, shelf_) {}

  const Notes& notes() const override { return notes_; }
  bool has_leases() const override { return false; }
  /// Tags that name images and the like are left out.
  std::set<Digest> tagged() override;
  std::vector<Digest> blobs() override;
  bool frees_itself() const override { return true; }
  void remove_layer(const LayerManifest& layer) override;
  void remove_blob(const Digest& blob) override;
  void put_back(const LayerManifest& layer) override;
  void finish(const std::string& author) override;

 private:
  OciClient& client_;
  const std::string shelf_;
  const OciNotes notes_;
  std::map<Digest, std::string> removed_indexes_;  ///< by data blob, their manifests
};

}  // namespace dsec::registry
