#include "core/model/layer_ref.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"

namespace dsec {
namespace {

TEST_CASE("a reference without a tag means latest", "[model][ref]") {
  CHECK(LayerRef::parse("base/debian").str() == "base/debian:latest");
  CHECK(LayerRef::parse("workspace/team/toolz-1:v1.0").str() == "workspace/team/toolz-1:v1.0");
}

TEST_CASE("a digest may stand after a name or alone, whole or as a prefix", "[model][ref]") {
  const std::string hex = Digest::of("x").hex();
  CHECK(LayerRef::parse("base/x@sha256:" + hex).digest_prefix == hex);
  CHECK(LayerRef::parse("sha256:3f2c").digest_prefix == "3f2c");
  CHECK(LayerRef::parse("3f2c9d1").digest_prefix == "3f2c9d1");
  CHECK_FALSE(LayerRef::parse("3f2c9d1").name);
}

TEST_CASE("what is no reference is refused with the part that is wrong", "[model][ref]") {
  for (const char* wrong : {"", "debian", "box/x", "base/", "base/X", "base/a..b", "base/a/", "base/-a", "base/a___b",
                            "base/x:", "base/x:-t", "base/x@", "base/x@sha256:12", "sha256:xyz", "base/x@md5:1234"})
    CHECK_THROWS_AS(LayerRef::parse(wrong), Error);
}

}  // namespace
}  // namespace dsec
