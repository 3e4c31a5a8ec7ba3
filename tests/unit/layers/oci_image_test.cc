#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "layers/oci/image_source.h"
#include "tests/unit/layers/image_builder.h"
#include "tests/unit/layers/recorded_tree.h"
#include "tests/unit/layers/tar_builder.h"

using namespace dsec;
using namespace dsec::layers;
namespace fs = std::filesystem;

namespace {

struct Read {
  SourceFacts facts;
  std::string listing;
};

Read read_image(ImageSource::Form form, const std::string& location,
                const SourceOptions& options = {.platform = "linux/amd64"}) {
  const TempDirectory spool(fs::temp_directory_path());
  ImageSource source(form, location, spool.path());
  Progress progress;
  Read read{source.examine(options, progress), {}};
  RecordedTree tree;
  source.emit(0, tree);
  read.listing = tree.listing();
  return read;
}

std::string refusal_of(ImageSource::Form form, const std::string& location,
                       const SourceOptions& options = {.platform = "linux/amd64"}) {
  try {
    read_image(form, location, options);
  } catch (const Error& error) {
    std::string text = error.message();
    for (const std::string& hint : error.hints()) text += " | " + hint;
    return text;
  }
  return "accepted";
}

constexpr auto kLayout = ImageSource::Form::Layout;
constexpr auto kArchive = ImageSource::Form::Archive;
constexpr auto kDocker = ImageSource::Form::DockerArchive;

ImageBuilder::Layer layer(const std::string& name) { return {TarBuilder().file(name, name).str(), {}}; }

bool has(const std::string& text, std::string_view part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the config of an image is kept, and null is the same as absent", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  Json config = image.config({layer("a")});
  config["config"]["Healthcheck"] = {{"Test", {"CMD", "x"}}, {"Interval", 5}, {"Timeout", nullptr}};
  config["config"]["Shell"] = {"/bin/bash", "-c"};
  config["config"]["OnBuild"] = {"RUN x"};
  config["config"]["Labels"] = {{"org.example.team", "a b"}};
  config["config"]["User"] = "web:web";
  config["config"]["WorkingDir"] = "/srv";
  config["config"]["StopSignal"] = "SIGINT";
  image.index({image.manifest({layer("a")}, config)});
  const Read read = read_image(kLayout, image.root());
  CHECK(read.facts.config.healthcheck == HealthCheck{.test = {"CMD", "x"}, .interval = 5});
  CHECK(read.facts.config.shell == std::vector<std::string>{"/bin/bash", "-c"});
  CHECK(read.facts.config.onbuild == std::vector<std::string>{"RUN x"});
  CHECK(read.facts.config.labels == std::map<std::string, std::string>{{"org.example.team", "a b"}});
  CHECK(read.facts.config.user == "web:web");
  CHECK(read.facts.config.workdir == "/srv");
  CHECK(read.facts.config.stop_signal == "SIGINT");
  CHECK(read.facts.config.env == std::vector<std::string>{"A=1"});
  CHECK(read.facts.config.command == std::vector<std::string>{"sh"});
  CHECK(read.facts.config.entrypoint.empty());
  CHECK(read.facts.config.exposed_ports == std::vector<std::string>{"80/tcp"});
  CHECK(read.facts.platform == "linux/amd64");
  CHECK(read.facts.provenance.inputs.count("image") == 1);
}

TEST_CASE("an image is found by name, by digest, or as the only one", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "im:age");
  const Json one = image.image({layer("one")}), two = image.image({layer("two")});
  image.index({image.named(one, "v1"), image.named(two, "example.org/two:v2")});
  const std::string root = image.root();
  CHECK(read_image(kLayout, root + ":v1").listing == "one");
  CHECK(read_image(kLayout, root + ":example.org/two:v2").listing == "two");
  CHECK(read_image(kLayout, root + ":" + two["digest"].get<std::string>()).listing == "two");
  CHECK(has(refusal_of(kLayout, root), "name one after the path: v1, example.org/two:v2"));
  CHECK(has(refusal_of(kLayout, root + ":v3"), "reference-missing: it holds no image 'v3'"));
  image.index({one});
  CHECK(read_image(kLayout, root).listing == "one");
}

TEST_CASE("the platform is chosen among nested indexes, and what is for others is not read", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  const auto for_platform = [](Json descriptor, const char* architecture, const char* variant) {
    descriptor["platform"] = {{"os", "linux"}, {"architecture", architecture}};
    if (*variant) descriptor["platform"]["variant"] = variant;
    return descriptor;
  };
  Json attestation = image.descriptor(R"({"schemaVersion":2,"config":{},"layers":[]})");
  attestation["annotations"] = {{"vnd.docker.reference.type", "attestation-manifest"}};
  attestation["platform"] = {{"os", "unknown"}, {"architecture", "unknown"}};
  Json missing = for_platform(image.image({layer("s390x")}), "s390x", "");
  fs::remove(image.blob_path(Digest::parse(missing["digest"].get<std::string>())));
  const Json inner = image.descriptor(Json{
      {"schemaVersion", 2},
      {"manifests",
       {attestation, missing,
        for_platform(image.manifest({layer("arm")}, image.config({layer("arm")}, "arm")), "arm", "v7"),
        for_platform(image.manifest({layer("arm64")}, image.config({layer("arm64")}, "arm64")), "arm64", "v8"),
        for_platform(image.image({layer("amd64")}), "amd64",
                     "")}}}.dump());
  image.index({image.named(inner, "latest")});
  const std::string root = image.root();
  CHECK(read_image(kLayout, root + ":latest").listing == "amd64");
  CHECK(read_image(kLayout, root, {.platform = "linux/arm64"}).listing == "arm64");
  CHECK(read_image(kLayout, root, {.platform = "linux/arm64/v8"}).listing == "arm64");
  CHECK(
      has(refusal_of(kLayout, root, {.platform = "linux/riscv64"}),
          "platform-missing: there is no image for linux/riscv64 | --platform with one of linux/amd64, linux/arm/v7"));
  CHECK(has(refusal_of(kLayout, root, {.platform = "linux/s390x"}), "blob-missing"));
  // An image without a variant in its config is what its descriptor says, and older variants run on newer processors.
  CHECK(read_image(kLayout, root, {.platform = "linux/arm"}).listing == "arm");
  CHECK(read_image(kLayout, root, {.platform = "linux/arm/v8"}).listing == "arm");
  CHECK(has(refusal_of(kLayout, root, {.platform = "linux/arm/v6"}), "platform-missing"));
  // Without platforms in the descriptors the configs tell.
  image.index(
      {image.manifest({layer("arm64")}, image.config({layer("arm64")}, "arm64")), image.image({layer("amd64")})});
  CHECK(read_image(kLayout, root).listing == "amd64");
  // What is no image or not whole stands in nobody's way.
  const Json artifact = image.descriptor(
      Json{{"schemaVersion", 2}, {"config", image.descriptor("{}")}, {"layers", Json::array()}}.dump());
  image.index({artifact, image.image({layer("amd64")})});
  CHECK(read_image(kLayout, root).listing == "amd64");
  image.index({artifact, artifact});
  CHECK(has(refusal_of(kLayout, root), "so this is an artifact and no image"));
  // One image for another platform is no choice, and is refused only when the platform was asked for.
  image.index({image.manifest({layer("arm64")}, image.config({layer("arm64")}, "arm64"))});
  CHECK(has(refusal_of(kLayout, root), "platform-missing: the image is for linux/arm64"));
}

TEST_CASE("every claim of an image's documents is verified", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  const std::string root = image.root();
  const std::vector<ImageBuilder::Layer> layers = {layer("a"), layer("b")};
  const auto write_over = [&](const std::string& bytes, const std::string& other) {
    write_file_atomic(image.blob_path(Digest::of(bytes)), other);
  };
  image.index({image.image(layers)});
  CHECK(read_image(kLayout, root).listing == "a b");

  write_over(layers[1].blob, layers[0].blob);
  CHECK(has(refusal_of(kLayout, root), "cannot read layer 2 of 2"));
  CHECK(has(refusal_of(kLayout, root), "digest-mismatch"));
  write_over(layers[1].blob, layers[1].blob + "x");
  CHECK(has(refusal_of(kLayout, root), "size-mismatch"));
  fs::remove(image.blob_path(Digest::of(layers[1].blob)));
  CHECK(has(refusal_of(kLayout, root), "blob-missing: layer 2 of 2"));
  write_over(layers[1].blob, layers[1].blob);

  image.index({image.manifest(layers, image.config({layer("a"), layer("c")}))});
  CHECK(has(refusal_of(kLayout, root), "diff-id-mismatch: it unpacks to the digest"));
  image.index({image.manifest(layers, image.config({layer("a")}))});
  CHECK(has(refusal_of(kLayout, root), "diff-id-mismatch: the manifest lists 2 layers"));

  const Json config = image.config(layers);
  image.index({image.manifest(layers, config)});
  write_over(config.dump(), std::string(config.dump().size(), ' '));
  CHECK(has(refusal_of(kLayout, root), "digest-mismatch: config"));
  fs::remove(image.blob_path(Digest::of(config.dump())));
  CHECK(has(refusal_of(kLayout, root), "blob-missing: config"));

  Json artifact = image.descriptor("{}");
  image.index({image.descriptor(Json{{"schemaVersion", 2}, {"config", artifact}, {"layers", Json::array()}}.dump())});
  CHECK(has(refusal_of(kLayout, root), "so this is an artifact and no image"));
  image.index({image.descriptor(R"({"schemaVersion":1,"fsLayers":[]})")});
  CHECK(has(refusal_of(kLayout, root), "schema 1"));
  for (const char* wrong :
       {"", "[", "[]", "{}", R"({"manifests":[{}]})", R"({"manifests":[{"digest":"sha256:../x","size":1}]})",
        R"({"manifests":[]})", R"({"manifests":[{"digest":7,"size":"x"}]})"}) {
    write_file_atomic(image.root() / "index.json", wrong);
    const std::string refused = refusal_of(kLayout, root);
    CHECK((refused.find("layer-damaged") != std::string::npos || refused.find("no-image") != std::string::npos));
  }
}

TEST_CASE("a blob that is no regular file is refused instead of read forever", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  image.index({image.image({layer("a")})});
  const fs::path blob = image.blob_path(Digest::of(layer("a").blob));
  fs::remove(blob);
  fs::create_symlink("/dev/zero", blob);
  CHECK(has(refusal_of(kLayout, image.root()), "is no regular file"));
}

TEST_CASE("a layer may end without the padding of its last file, as container runtimes have it", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  const std::string whole = TarBuilder().file("a", std::string(700, 'a')).str();
  image.index({image.image({{whole.substr(0, 512 + 700), {}}})});
  CHECK(read_image(kLayout, image.root()).listing == "a");
  image.index({image.image({{whole.substr(0, 512 + 699), {}}})});
  CHECK(has(refusal_of(kLayout, image.root()), "layer-truncated"));
}

TEST_CASE("what descriptors say of media types does not count, content does", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  const std::string plain = layer("plain").blob, unpacked = layer("packed").blob;
  const CommandResult gzip = run_command({.argv = {"gzip", "-c"}}, unpacked);
  REQUIRE(gzip.status.ok());
  const std::vector<ImageBuilder::Layer> layers = {{plain, {}}, {gzip.out, unpacked}};
  const auto lie = [&](Json descriptor, const char* type) {
    descriptor["mediaType"] = type;
    return descriptor;
  };
  const Json manifest = {{"schemaVersion", 2},
                         {"mediaType", "application/vnd.oci.image.index.v1+json"},
                         {"config", lie(image.descriptor(image.config(layers).dump()), "image/png")},
                         {"layers",
                          {lie(image.descriptor(plain), "application/vnd.oci.image.layer.v1.tar+zstd"),
                           lie(image.descriptor(gzip.out), "application/vnd.oci.image.layer.v1.tar")}}};
  const Json inner = {
      {"schemaVersion", 2},
      {"mediaType", "application/vnd.oci.image.manifest.v1+json"},
      {"manifests", {lie(image.descriptor(manifest.dump()), "application/vnd.oci.image.layer.v1.tar+gzip")}}};
  image.index({lie(image.descriptor(inner.dump()), "application/vnd.oci.image.manifest.v1+json")});
  const Read read = read_image(kLayout, image.root());
  CHECK(read.listing == "packed plain");
  CHECK(read.facts.config.env == std::vector<std::string>{"A=1"});
}

TEST_CASE("an archive of a layout, packed or not, gives the same layer as the layout", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  image.index({image.named(image.image({layer("a"), layer("b")}), "latest")});
  for (const char* flags : {"-cf", "-czf"}) {
    const std::string file = work.path() / "image.tar";
    REQUIRE(run_command({.argv = {"tar", "-C", image.root(), flags, file, "."}}).status.ok());
    const Read read = read_image(kArchive, file + ":latest");
    CHECK(read.listing == "a b");
    CHECK(read.facts.identity == read_image(kLayout, image.root()).facts.identity);
  }
  CHECK(has(refusal_of(kDocker, work.path() / "image.tar"), "oci-archive:, since there is an index.json"));
  CHECK(has(refusal_of(kLayout, work.path() / "image.tar"), "it is no directory"));
  CHECK_THROWS_AS(ImageSource(kArchive, work.path() / "nothing", work.path()), Error);
}

TEST_CASE("of several variants the nearest is taken, wherever it stands", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  const auto for_variant = [&](const std::string& architecture, const std::string& variant) {
    const std::string name = architecture + variant;
    Json descriptor = image.manifest({layer(name)}, image.config({layer(name)}, architecture));
    descriptor["platform"] = {{"os", "linux"}, {"architecture", architecture}};
    if (!variant.empty()) descriptor["platform"]["variant"] = variant;
    return descriptor;
  };
  image.index({for_variant("arm", "v5"), for_variant("arm", "v7"), for_variant("arm", "v6"), for_variant("amd64", "v3"),
               for_variant("amd64", ""), for_variant("amd64", "v2")});
  const auto taken = [&](const std::string& platform) {
    return read_image(kLayout, image.root(), {.platform = platform}).listing;
  };
  CHECK(taken("linux/arm") == "armv7");
  CHECK(taken("linux/arm/v6") == "armv6");
  CHECK(taken("linux/amd64") == "amd64");
  CHECK(taken("linux/amd64/v2") == "amd64v2");
  CHECK(taken("linux/amd64/v4") == "amd64v3");
  image.index({for_variant("amd64", "v3"), for_variant("amd64", "v2")});
  CHECK(taken("linux/amd64") == "amd64v2");
}

TEST_CASE("indexes that name one another many times over are read once", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  Json wide = image.manifest({layer("s390x")}, image.config({layer("s390x")}, "s390x"));
  wide["platform"] = {{"os", "linux"}, {"architecture", "s390x"}};
  for (int level = 0; level < 7; ++level)
    wide = image.descriptor(Json{{"schemaVersion", 2}, {"manifests", std::vector<Json>(40, wide)}}.dump());
  image.index({wide});
  CHECK(has(refusal_of(kLayout, image.root()), "platform-missing"));
  CHECK(read_image(kLayout, image.root(), {.platform = "linux/s390x"}).listing == "s390x");
}

TEST_CASE("a blob may come along in its descriptor", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  const ImageBuilder::Layer one = layer("one");
  // The text of base64 is made by hand: 'QUFB' is "AAA".
  Json manifest = {{"schemaVersion", 2}, {"config", image.descriptor(image.config({}).dump())}, {"layers", nullptr}};
  manifest["config"]["data"] = "QUFB";
  image.index({image.descriptor(manifest.dump())});
  CHECK(read_image(kLayout, image.root()).listing.empty());  // the file counts, and an image may have no layers
  fs::remove(image.blob_path(Digest::parse(manifest["config"]["digest"].get<std::string>())));
  CHECK(has(refusal_of(kLayout, image.root()), "size-mismatch"));
  manifest["config"] = {{"digest", Digest::of("{}").str()}, {"size", 2}, {"data", "e30="}};
  image.index({image.descriptor(manifest.dump())});
  CHECK(has(refusal_of(kLayout, image.root()), "this is an artifact and no image"));
}

TEST_CASE("a layout of an unknown version is refused", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder image(work.path() / "image");
  image.index({image.image({layer("a")})});
  write_file_atomic(image.root() / "oci-layout", R"({"imageLayoutVersion":"2.0.0"})");
  CHECK(has(refusal_of(kLayout, image.root()), "no-image: the layout is of version '2.0.0'"));
}

TEST_CASE("a file with holes in an image archive is read whole", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder scratch(work.path() / "scratch");
  const std::string blob = TarBuilder().file("f", std::string(2048, '\0') + "end").str();
  const std::string config = scratch.config({{blob, {}}}).dump();
  const std::string manifest =
      Json::array({{{"Config", "c.json"}, {"RepoTags", {"x"}}, {"Layers", {"layer.tar"}}}}).dump();
  write_file_atomic(work.path() / "d.tar",
                    TarBuilder()
                        .file("layer.tar", blob.substr(0, 512) + blob.substr(2560),
                              {.pax = {{"GNU.sparse.size", std::to_string(blob.size())},
                                       {"GNU.sparse.map", "0,512,2560," + std::to_string(blob.size() - 2560)}}})
                        .file("c.json", config)
                        .file("manifest.json", manifest)
                        .str());
  CHECK(read_image(kDocker, (work.path() / "d.tar").native()).listing == "f");
}

TEST_CASE("an image of a docker archive may be named in docker's short form or in its long one", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder scratch(work.path() / "scratch");
  Json manifest = Json::array();
  TarBuilder tar;
  // As docker saves them, and as podman does.
  for (const std::string tag : {"short:1", "docker.io/library/long:latest", "localhost/own:latest"}) {
    const std::string config = scratch.config({layer(tag.substr(0, 2))}).dump();
    const std::string name = Digest::of(config).hex();
    tar.file(name + ".json", config).file(name + ".tar", layer(tag.substr(0, 2)).blob);
    manifest.push_back({{"Config", name + ".json"}, {"RepoTags", {tag}}, {"Layers", {name + ".tar"}}});
  }
  write_file_atomic(work.path() / "d.tar", tar.file("manifest.json", manifest.dump()).str());
  const std::string file = (work.path() / "d.tar").native() + ":";
  for (const char* name : {"short:1", "library/short:1", "docker.io/library/short:1"})
    CHECK(read_image(kDocker, file + name).listing == "sh");
  for (const char* name : {"long", "long:latest", "docker.io/library/long"})
    CHECK(read_image(kDocker, file + name).listing == "do");
  CHECK(read_image(kDocker, file + "localhost/own").listing == "lo");
  for (const char* name : {"short", "own", "library"})
    CHECK(has(refusal_of(kDocker, file + name), "it holds short:1, docker.io/library/long:latest"));
}

TEST_CASE("links in a docker archive lead to its own files alone", "[layers][oci]") {
  const TempDirectory work(fs::temp_directory_path());
  ImageBuilder scratch(work.path() / "scratch");
  const std::string config = scratch.config({layer("a"), layer("b"), layer("a")}).dump();
  const std::string config_name = Digest::of(config).hex() + ".json";
  const auto manifest = [&](const std::vector<std::string>& layers) {
    return Json::array({{{"Config", config_name}, {"RepoTags", {"case/one:latest"}}, {"Layers", layers}}}).dump();
  };
  const auto archive = [&](const std::string& third_target) {
    write_file_atomic(work.path() / "d.tar",
                      TarBuilder()
                          .symlink("1/layer.tar", "../shared.tar")
                          .file("shared.tar", layer("a").blob)
                          .file("2/layer.tar", layer("b").blob)
                          .symlink("3/layer.tar", third_target)
                          .file(config_name, config)
                          .file("manifest.json", manifest({"1/layer.tar", "2/layer.tar", "3/layer.tar"}))
                          .str());
    return (work.path() / "d.tar").native();
  };
  const std::string file = archive("../1/layer.tar");
  CHECK(read_image(kDocker, file).listing == "a b");
  CHECK(read_image(kDocker, file + ":case/one").listing == "a b");
  CHECK(read_image(kDocker, file + ":case/one:latest").listing == "a b");
  CHECK(has(refusal_of(kDocker, file + ":case/two"), "it holds case/one:latest"));
  CHECK(has(refusal_of(kDocker, archive("../../../etc/passwd")), "path-escapes-root"));
  CHECK(has(refusal_of(kDocker, archive("3/layer.tar")), "blob-missing"));
  CHECK(has(refusal_of(kDocker, archive("layer.tar")), "too many links"));
  CHECK(has(refusal_of(kDocker, archive("../2/layer.tar")), "diff-id-mismatch"));
}
