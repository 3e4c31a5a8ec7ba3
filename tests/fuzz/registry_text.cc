// All text that comes from outside through the registry room: manifests, references, URLs, tags, configuration,
// mountinfo. The first byte chooses the parser; the only exception that is forgiven is Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/model/layer_manifest.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/layout.h"
#include "registry/registry_url.h"

namespace {

using namespace dsec;

void require(bool holds) {
  if (!holds) std::abort();
}

void parse(unsigned char which, const std::string& text) {
  switch (which % 6) {
    case 0: {
      // What is accepted comes back as the same value, and its canonical form is a fixed point.
      const LayerManifest manifest = LayerManifest::parse(text, "input");
      const std::string canonical = manifest.canonical();
      require(LayerManifest::parse(canonical, "input").canonical() == canonical);
      break;
    }
    case 1:
      require(LayerRef::parse(LayerRef::parse(text).str()) == LayerRef::parse(text));
      break;
    case 2: {
      const auto address = registry::RegistryAddress::parse(text);
      require(!address.is_directory() || address.root.is_absolute());
      require(registry::RegistryAddress::parse(address.url()).url() == address.url());
      break;
    }
    case 3:
      Config::parse(text, "input");
      break;
    case 4:
      registry::mount_of("/a/b", registry::parse_mountinfo(text));
      break;
    default:
      // No folder name leads out of its place.
      if (const auto name = registry::name_of_folder(LayerKind::Base, text))
        require(registry::tag_name(*name, "t") == "tags/base/" + text + "/t" && text.find("..") == std::string::npos);
      registry::digest_of_manifest_file(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const dsec::Error&) {
    // What a person is told.
  }
  return 0;
}
