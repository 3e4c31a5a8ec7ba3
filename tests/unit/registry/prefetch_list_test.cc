#include "registry/layout/prefetch_list.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "registry/store/chunk_digests.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

const Digest kLayer = Digest::of("layer"), kData = Digest::of("data"), kMore = Digest::of("more");

/// Of a layer of two images, with blobs of 10 chunks (the last one is short) and of 3.
LayerManifest manifest() {
  LayerManifest manifest;
  const auto image = [](const Digest& data, std::uint64_t size) {
    return LayerImage{
        .blobs = {{BlobRole::Meta, Digest::of("meta"), 4096},
                  {BlobRole::Data, data, size},
                  {BlobRole::Chunks, Digest::of("chunks"), chunks_of(size, kChunkSize) * kRawDigestSize}}};
  };
  manifest.images = {image(kData, 9 * kChunkSize + 4096), image(kMore, 3 * kChunkSize)};
  return manifest;
}

PrefetchList parse(const std::string& text) { return PrefetchList::parse(text, kLayer, manifest()); }

/// A list whose one blob has these chunks.
std::string with_chunks(const std::string& chunks) {
  return R"({"blobs":[{"chunks":)" + chunks + R"(,"digest":")" + kData.str() + R"("}],"chunk_bytes":65536,"layer":")" +
         kLayer.str() + R"(","schema":1,"type":"dsec-prefetch"})" + "\n";
}

std::string why(const std::string& text) {
  try {
    parse(text);
    return "taken";
  } catch (const Error& error) {
    return error.message();
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("a prefetch list comes back as it was written", "[registry][prefetch]") {
  const PrefetchList list{kLayer, {{kMore, {{2, 1}, {0, 1}}}, {kData, {{4, 3}, {0, 2}, {9, 1}}}}};
  const PrefetchList back = parse(list.text());
  CHECK(back.layer == kLayer);
  CHECK(back.blobs == list.blobs);
  CHECK(with_chunks("[[4,3]]") == PrefetchList{kLayer, {{kData, {{4, 3}}}}}.text());
  CHECK(chunks_in(list.blobs[1].runs) == 6);
  CHECK(parse(PrefetchList{kLayer, {}}.text()).blobs.empty());
}

TEST_CASE("a prefetch list of larger pieces names all that they have", "[registry][prefetch]") {
  const auto large = [](const std::string& chunks) { return replaced(with_chunks(chunks), "65536", "262144"); };
  CHECK(parse(large("[[2,1],[0,1]]")).blobs == std::vector<PrefetchList::OfBlob>{{kData, {{8, 2}, {0, 4}}}});
  CHECK_THAT(why(large("[[3,1]]")), Contains("of a blob that has 3"));
}

TEST_CASE("a prefetch list names only chunks that there are, each once", "[registry][prefetch]") {
  CHECK(why(with_chunks("[[0,10]]")) == "taken");
  CHECK(why(with_chunks("[[9,1],[0,9]]")) == "taken");
  for (const char* chunks : {"[[0,11]]", "[[10,1]]", "[[9,2]]", "[[18446744073709551615,1]]",
                             "[[1,18446744073709551615]]", "[[18446744073709551615,18446744073709551615]]", "[[0,0]]"})
    CHECK_THAT(why(with_chunks(chunks)), Contains("of a blob that has 10"));
  for (const char* chunks : {"[[3,1],[3,1]]", "[[2,5],[0,3]]", "[[0,10],[9,1]]"})
    CHECK_THAT(why(with_chunks(chunks)), Contains("twice"));
  for (const char* chunks : {"[[-1,1]]", "[[0.5,1]]", "[[1e30,1]]", R"([["0",1]])", "[[null,1]]"})
    CHECK_THAT(why(with_chunks(chunks)), Contains("something else than numbers"));
  for (const char* chunks : {"[0,1]", "[[0]]", "[[0,1,2]]", "[{}]", "[null]"})
    CHECK_THAT(why(with_chunks(chunks)), Contains("[FIRST, COUNT]"));
  for (const char* chunks : {"{}", "null", "7"}) CHECK_THAT(why(with_chunks(chunks)), Contains("no list 'chunks'"));
}

TEST_CASE("a prefetch list is of its layer and its data blobs", "[registry][prefetch]") {
  const std::string good = with_chunks("[[0,1]]");
  CHECK_THAT(why(replaced(good, kLayer.str(), kMore.str())), Contains("of another layer"));
  CHECK_THAT(why(replaced(good, kData.str(), Digest::of("meta").str())), Contains("no data blob of the layer"));
  CHECK_THAT(why(replaced(good, "65536", "4096")), Contains("chunks of another size"));
  CHECK_THAT(why(replaced(good, "\"schema\":1", "\"schema\":2")), Contains("this dsec knows 1"));
  CHECK_THAT(why(replaced(good, "dsec-prefetch", "dsec-catalogue")), Contains("of another type"));
  CHECK_THAT(why(R"({"blobs":7})"), Contains("is of no use"));
  CHECK_THAT(why("[]"), Contains("of another type"));
  CHECK_THAT(why("<html>404</html>"), Contains("is of no use"));
  CHECK_THAT(why(PrefetchList{kLayer, {{kData, {{0, 1}}}, {kData, {{1, 1}}}}}.text()), Contains("twice"));
}

TEST_CASE("a prefetch list has its limits", "[registry][prefetch]") {
  CHECK_THAT(why(std::string(kLargestPrefetchList + 1, ' ')), Contains("more than 1048576"));
  CHECK_THAT(why(std::string(100'000, '[')), Contains("is of no use"));
  std::vector<ChunkRun> runs;
  for (std::uint64_t i = 0; i <= kMostPrefetchRuns; ++i) runs.push_back({2 * i, 1});
  LayerManifest large = manifest();
  large.images[0].blobs[1].size = large.images[1].blobs[1].size = 4 * kMostPrefetchRuns * kChunkSize;
  const auto with = [&](const PrefetchList& list) { return PrefetchList::parse(list.text(), kLayer, large); };
  CHECK_THROWS_WITH(with({kLayer, {{kData, runs}}}), Contains("is of no use"));
  runs.pop_back();
  CHECK(with({kLayer, {{kData, runs}}}).blobs[0].runs.size() == kMostPrefetchRuns);
  // Together, too.
  CHECK_THROWS_WITH(with({kLayer, {{kData, runs}, {kMore, {{0, 1}}}}}), Contains("is of no use"));
}

}  // namespace dsec::registry::test
