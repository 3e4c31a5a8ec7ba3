#include "layers/rebuild.h"

#include <charconv>
#include <map>

#include "core/base/error.h"
#include "layers/erofs/mkfs.h"
#include "layers/import.h"

namespace dsec::layers {
namespace {

using Values = std::map<std::string, std::string>;

ImportOptions options_of(const LayerManifest& manifest) {
  ImportOptions options{.name = manifest.name, .tag = "", .platform = manifest.platform};
  const Values& recorded = manifest.provenance.options;
  if (const auto to = recorded.find("to"); to != recorded.end()) options.to = to->second;
  if (const auto limit = recorded.find("collapse_limit"); limit != recorded.end())
    std::from_chars(limit->second.data(), limit->second.data() + limit->second.size(), options.collapse_limit);
  if (!manifest.images.empty()) options.compression = manifest.images.front().compression;
  return options;
}

void compare(const std::string& what, const Values& then, const Values& now, std::vector<std::string>& differences) {
  Values names = then;
  names.insert(now.begin(), now.end());
  const auto value = [](const Values& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string("absent") : found->second;
  };
  for (const auto& [name, ignored] : names) {
    const std::string was = value(then, name), is = value(now, name);
    std::string told = what;
    told.append(" ").append(name).append(": was ").append(was).append(", is ").append(is);
    if (was != is) differences.push_back(std::move(told));
  }
}

Values blobs_of(const LayerManifest& manifest) {
  static const std::map<BlobRole, std::string> kRoles = {
      {BlobRole::Meta, "meta"}, {BlobRole::Data, "data"}, {BlobRole::Chunks, "chunks"}};
  Values blobs;
  for (std::size_t i = 0; i < manifest.images.size(); ++i)
    for (const Blob& blob : manifest.images[i].blobs)
      blobs["of image " + std::to_string(i) + " " + kRoles.at(blob.role)] = blob.digest.str();
  return blobs;
}

}  // namespace

Rebuilt rebuild(engine::LayerStore& store, const LayerManifest& manifest, Source& source, Progress& progress) {
  return attempt("cannot make " + manifest.name.str() + " again", [&] {
    const Provenance& then = manifest.provenance;
    if (!then.steps.empty())
      throw failure("it was made by build steps").hint("dsec build --no-cache, which runs the steps again");
    if (const std::string here = Mkfs::find().version; here != then.mkfs)
      throw failure("it was written by mkfs.erofs " + then.mkfs + ", this host has " + here)
          .hint("DSEC_MKFS_EROFS=FILE with a mkfs.erofs of that version");
    const auto session = store.begin_session();
    const LayerManifest now = make_layer(*session, source, options_of(manifest), progress);
    if (now.provenance.source != then.source)
      throw usage_error("it was made from a source of the kind " + quote(then.source) + ", not " +
                        quote(now.provenance.source));
    Rebuilt result{now.digest(), {}};
    compare("input", then.inputs, now.provenance.inputs, result.differences);
    compare("option", then.options, now.provenance.options, result.differences);
    compare("blob", blobs_of(manifest), blobs_of(now), result.differences);
    if (result.differences.empty() && result.digest != manifest.digest())
      result.differences.push_back("manifest: was " + manifest.digest().str() + ", is " + result.digest.str());
    return result;
  });
}

}  // namespace dsec::layers
