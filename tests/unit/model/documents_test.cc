#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/layer_manifest.h"
#include "core/model/sandbox_spec.h"

namespace dsec {
namespace {

LayerManifest sample() {
  LayerManifest manifest{LayerName::parse("workspace/toolz"), "linux/amd64", {}, {}, {}, {}};
  manifest.images.push_back({{{BlobRole::Meta, Digest::of("m"), 4096}, {BlobRole::Data, Digest::of("d"), 8192}},
                             "none",
                             "00000000-0000-4000-8000-000000000000"});
  manifest.config.env = {"A=1"};
  manifest.provenance.source = "git";
  manifest.provenance.inputs["commit"] = "3f2c";
  manifest.provenance.built_on = Digest::of("base");
  manifest.implicit_parents = {"home", std::string("b\xff%d")};
  return manifest;
}

TEST_CASE("a manifest survives its canonical form, bytes in names included", "[model][manifest]") {
  const LayerManifest manifest = sample();
  CHECK(LayerManifest::parse(manifest.canonical(), "m") == manifest);
  CHECK(manifest.total_size() == 12288);
}

TEST_CASE("only a manifest that stands on others says so, so that older digests stay", "[model][manifest]") {
  LayerManifest manifest = sample();
  CHECK(manifest.canonical().find("lowers") == std::string::npos);
  manifest.lowers = {Digest::of("base"), Digest::of("toolkit")};
  CHECK(LayerManifest::parse(manifest.canonical(), "m") == manifest);
}

TEST_CASE("what Docker adds to a config is kept, and told only where it is", "[model][manifest]") {
  LayerManifest manifest = sample();
  for (const char* name : {"healthcheck", "shell", "onbuild"})
    CHECK(manifest.canonical().find(name) == std::string::npos);
  manifest.config.healthcheck = HealthCheck{.test = {"CMD", "x"}, .interval = 5, .timeout = 0, .retries = 2};
  manifest.config.shell = {"/bin/bash", "-c"};
  manifest.config.onbuild = {"RUN x", "COPY a b"};
  CHECK(LayerManifest::parse(manifest.canonical(), "m") == manifest);
  CHECK(manifest.canonical().find(R"("healthcheck":{"interval":5,"retries":2,"test":["CMD","x"]})") !=
        std::string::npos);
}

LayerManifest disk() {
  LayerManifest manifest{LayerName::parse("base/desktop"), "linux/amd64", {}, {}, {}, {}};
  LayerImage image;
  image.blobs = {{BlobRole::Disk, Digest::of("disk"), 4096}};
  image.disk = DiskForm{"qcow2", "uefi", 4ull << 30, true};
  manifest.images.push_back(image);
  manifest.provenance.source = "disk";
  return manifest;
}

TEST_CASE("the disk of a machine is an image of one blob that says how it is read", "[model][manifest]") {
  CHECK(sample().canonical().find("disk") == std::string::npos);
  CHECK_FALSE(sample().is_disk());
  CHECK(LayerManifest::parse(disk().canonical(), "m") == disk());
  CHECK(disk().is_disk());
  try {
    disk().images.front().blob(BlobRole::Meta);
    FAIL();
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Catch::Contains("only its own system reads"));
  }
}

TEST_CASE("a disk that contradicts itself is refused", "[model][manifest]") {
  const auto refused = [](const auto& change) {
    LayerManifest manifest = disk();
    change(manifest);
    CHECK_THROWS_AS(LayerManifest::parse(manifest.canonical(), "m"), Error);
  };
  refused([](LayerManifest& manifest) { manifest.name.kind = LayerKind::Toolkit; });
  refused([](LayerManifest& manifest) { manifest.images.push_back(manifest.images.front()); });
  refused([](LayerManifest& manifest) { manifest.images.front().disk->format = "vmdk"; });
  refused([](LayerManifest& manifest) { manifest.images.front().disk->firmware = "dos"; });
  refused([](LayerManifest& manifest) { manifest.images.front().blobs.front().role = BlobRole::Data; });
  refused([](LayerManifest& manifest) { manifest.images.front().disk.reset(); });
}

TEST_CASE("a manifest of a newer schema is refused", "[model][manifest]") {
  CHECK_THROWS_WITH(LayerManifest::parse("{\"schema\":2}", "m"), "manifest m is not valid");
  try {
    LayerManifest::parse("{\"schema\":2}", "m");
  } catch (const Error& error) {
    CHECK(error.message() == "manifest m is not valid: schema 2 is unknown; this dsec knows 1");
  }
}

TEST_CASE("manifests that lie about their types are refused, not crashed on", "[model][manifest]") {
  for (const char* wrong :
       {"[]", "{\"schema\":\"1\"}", "{\"schema\":1,\"kind\":\"base\",\"name\":\"x\",\"platform\":\"p\"}",
        "{\"schema\":1,\"kind\":\"base\",\"name\":\"x\",\"platform\":\"p\",\"images\":[]}",
        "{\"schema\":1,\"kind\":\"base\",\"name\":\"x\",\"platform\":\"p\",\"images\":[1]}",
        "{\"schema\":1,\"kind\":\"base\",\"name\":\"x\",\"platform\":\"p\",\"images\":{}}"})
    CHECK_THROWS_AS(LayerManifest::parse(wrong, "m"), Error);
}

TEST_CASE("specifications survive their JSON form", "[model][sandbox]") {
  SandboxSpec spec;
  spec.name = "one";
  spec.layers = {Digest::of("a")};
  spec.limits.cpus = 1.5;
  spec.limits.memory = 1 << 30;
  spec.idle = std::chrono::minutes(5);
  spec.idle_pause = std::chrono::seconds(30);
  spec.machine_id = "0123456789abcdef0123456789abcdef";
  spec.limits.cpu_class = CpuClass::Batch;
  spec.limits.class_by = "cpu.idle";
  spec.devices = {{"/dev/nvidia0", "/dev/gpu"}};
  spec.gpus = GpuWish{
      .devices = {"/dev/nvidia0", "/dev/nvidia1"}, .count = 2, .exclusive = false, .wait = std::chrono::seconds(3)};
  spec.binds = {{"/a", "/b", true}};
  spec.tmpfs = {{"/t", 1 << 20}, {"/u"}};
  spec.network = NetworkMode::Host;
  CHECK(sandbox_spec_from_json(to_json(spec)) == spec);
  ExecSpec exec;
  exec.argv = {"true"};
  exec.timeout = std::chrono::seconds(3);
  CHECK(exec_spec_from_json(to_json(exec)) == exec);
  CHECK_THROWS_AS(exec_spec_from_json(Json{{"argv", 3}}), Error);
}

TEST_CASE("a device is given by its path below /dev, and nothing leads out", "[model][sandbox]") {
  CHECK(parse_device("/dev/dri/card0") == DeviceGrant{"/dev/dri/card0", "/dev/dri/card0"});
  CHECK(parse_device("/dev/nvidia0:/dev/gpu") == DeviceGrant{"/dev/nvidia0", "/dev/gpu"});
  for (const char* text : {"", "/dev", "/dev/", "/dev//x", "/dev/../etc/passwd", "/dev/x/", "/dev/x:", ":/dev/x",
                           "/dev/x:/etc/x", "/dev/x:/dev/./y", "/dev/x:/dev/y:rw"})
    CHECK_THROWS_AS(parse_device(text), Error);
}

}  // namespace
}  // namespace dsec
