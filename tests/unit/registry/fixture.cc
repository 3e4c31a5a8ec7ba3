#include "tests/unit/registry/fixture.h"

#include <algorithm>
#include <cstdlib>
#include <random>

namespace dsec::registry::test {
namespace {

Blob put_blob(engine::BlobSession& session, BlobRole role, const std::string& bytes) {
  TempFile file = session.new_file();
  write_all(file.fd(), bytes);
  return session.adopt(std::move(file), role);
}

// As man/dsec-layer-manifest.5.md has it: 32 bytes of sha256 for each 64 KiB of data.
std::string chunks_of(const std::string& data) {
  std::string chunks;
  for (std::size_t at = 0; at < data.size(); at += 64 << 10) {
    const std::string hex = Digest::of(std::string_view(data).substr(at, 64 << 10)).hex();
    for (std::size_t i = 0; i < hex.size(); i += 2)
      chunks += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return chunks;
}

}  // namespace

LayerManifest put_blobs(engine::BlobSession& session, const std::string& name, const std::string& meta,
                        const std::string& data) {
  LayerManifest manifest{LayerName::parse(name), "linux/amd64", {}, {}, {}, {}};
  LayerImage image;
  image.blobs.push_back(put_blob(session, BlobRole::Meta, meta));
  image.blobs.push_back(put_blob(session, BlobRole::Data, data));
  image.blobs.push_back(put_blob(session, BlobRole::Chunks, chunks_of(data)));
  image.uuid = "00000000-0000-0000-0000-000000000000";
  manifest.images.push_back(image);
  manifest.provenance.source = "dir";
  manifest.provenance.mkfs = "1.9.4";
  return manifest;
}

engine::StoredLayer put_layer(LocalStore& store, const std::string& name, const std::string& tag,
                              const std::string& meta, const std::string& data) {
  const auto session = store.begin_session();
  const LayerManifest manifest = put_blobs(*session, name, meta, data);
  return store.add(manifest, tag, engine::Trust::BuiltHere, *session);
}

LayerRef named(const std::string& text) { return LayerRef::parse(text); }

std::vector<std::string> files_below(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (!entry.is_directory()) names.push_back(entry.path().lexically_relative(directory).native());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> temp_files_below(const fs::path& directory) {
  std::vector<std::string> names = files_below(directory);
  std::erase_if(names, [](const std::string& name) { return name.find(".tmp-") == std::string::npos; });
  return names;
}

std::string random_bytes(std::size_t size, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() >> 8);
  return bytes;
}

int rounds(int plain) {
  const char* wish = std::getenv("DSEC_TEST_LONG");
  return wish && *wish && std::string(wish) != "0" ? plain * 10 : plain;
}

}  // namespace dsec::registry::test
