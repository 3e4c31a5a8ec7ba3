#pragma once

#include "tests/unit/registry/loader/test_source.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {

/// A layer in a registry, and a store that has pulled it on demand.
struct OnDemand {
  OnDemand() : data(random_bytes(3 * kChunkSize + 12, 3)) {
    layer = put_layer(from.store, "base/x", "1", "meta", data);
    address = RegistryAddress::parse(from.registry_url());
    publish_refs(from.store, {"base/x:1"}, address);
    pulled = pull(to.store, named("base/x:1"), address, progress, PullMode::OnDemand);
  }
  const Blob& blob() const { return layer.manifest.images[0].blob(BlobRole::Data); }
  const Digest& chunks() const { return layer.manifest.images[0].blob(BlobRole::Chunks).digest; }

  Progress progress;
  const std::string data;
  Scratch from, to;
  engine::StoredLayer layer{Digest::of(""), {}, {}, {}, {}};
  RegistryAddress address;
  PullResult pulled{layer, 0, 0, 0, 0};
};

}  // namespace dsec::registry::test
