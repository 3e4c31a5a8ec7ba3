#include "registry/layout/prefetch_list.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "registry/store/chunk_digests.h"

namespace dsec::registry {
namespace {

constexpr int kSchema = 1;
constexpr const char* kType = "dsec-prefetch";

// Of a data blob that has chunk digests.
std::uint64_t size_of_blob(const LayerManifest& manifest, const Digest& blob) {
  for (const LayerImage& image : manifest.images)
    if (const Blob* data = image.find(BlobRole::Data); data && data->digest == blob && image.find(BlobRole::Chunks))
      return data->size;
  throw usage_error("it names blob " + blob.brief() + ", which is no data blob of the layer");
}

const Json& list_member(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array()) throw usage_error("it has no list " + quote(name));
  return *found;
}

std::uint64_t number(const Json& json) {
  if (!json.is_number_unsigned()) throw usage_error("it names chunks by something else than numbers");
  return json.get<std::uint64_t>();
}

void check_disjoint(std::vector<ChunkRun> runs) {
  std::sort(runs.begin(), runs.end(), [](const ChunkRun& a, const ChunkRun& b) { return a.first < b.first; });
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (runs[i].first < runs[i - 1].first + runs[i - 1].count)
      throw usage_error("it names chunk " + std::to_string(runs[i].first) + " twice");
}

}  // namespace

std::vector<ChunkRun> resized(std::span<const ChunkRun> runs, std::size_t from, std::size_t to, std::uint64_t size) {
  std::vector<ChunkRun> result;
  for (const ChunkRun& run : runs) {
    const std::uint64_t begin = run.first * from, end = std::min(size, begin + run.count * from), first = begin / to;
    result.push_back({first, chunks_of(end, to) - first});
  }
  return result;
}

Json to_json(std::span<const ChunkRun> runs) {
  Json list = Json::array();
  for (const ChunkRun& run : runs) list.push_back(Json::array({run.first, run.count}));
  return list;
}

std::vector<ChunkRun> runs_from_json(const Json& json, std::uint64_t chunks) {
  if (!json.is_array()) throw usage_error("it names no chunks");
  if (json.size() > kMostPrefetchRuns)
    throw usage_error("it has more than " + std::to_string(kMostPrefetchRuns) + " runs of chunks");
  std::vector<ChunkRun> runs;
  for (const Json& each : json) {
    if (!each.is_array() || each.size() != 2) throw usage_error("a run of chunks is not [FIRST, COUNT]");
    const ChunkRun run{number(each[0]), number(each[1])};
    if (run.count == 0 || run.first >= chunks || run.count > chunks - run.first)
      throw usage_error("it names " + std::to_string(run.count) + " chunks from " + std::to_string(run.first) +
                        " of a blob that has " + std::to_string(chunks));
    runs.push_back(run);
  }
  check_disjoint(runs);
  return runs;
}

std::uint64_t chunks_in(std::span<const ChunkRun> runs) {
  std::uint64_t count = 0;
  for (const ChunkRun& run : runs) count += run.count;
  return count;
}

std::string PrefetchList::text() const {
  Json list = Json::array();
  for (const OfBlob& each : blobs) list.push_back({{"digest", each.blob.str()}, {"chunks", to_json(each.runs)}});
  return canonical_json({{"type", kType},
                         {"schema", kSchema},
                         {"layer", layer.str()},
                         {"chunk_bytes", kChunkSize},
                         {"blobs", std::move(list)}}) +
         "\n";
}

PrefetchList PrefetchList::parse(std::string_view text, const Digest& layer, const LayerManifest& manifest) {
  return attempt("the prefetch list of " + layer.str() + " is of no use", [&] {
    if (text.size() > kLargestPrefetchList)
      throw usage_error("it has " + std::to_string(text.size()) + " bytes, more than " +
                        std::to_string(kLargestPrefetchList));
    const Json json = parse_json(text, "it");
    if (!json.is_object() || json_string(json, "type") != kType) throw usage_error("it is of another type");
    if (const std::uint64_t schema = json_u64(json, "schema"); schema != kSchema)
      throw failure("it has format " + std::to_string(schema) + ", this dsec knows " + std::to_string(kSchema))
          .hint("use a newer dsec");
    if (json_string(json, "layer") != layer.str()) throw usage_error("it is of another layer");
    const std::uint64_t unit = json_u64(json, "chunk_bytes");
    if (unit != kChunkSize && unit != kLargeChunkSize) throw usage_error("it is of chunks of another size");
    PrefetchList list{layer, {}};
    std::size_t left = kMostPrefetchRuns;
    for (const Json& each : list_member(json, "blobs")) {
      if (!each.is_object()) throw usage_error("it has something else than blobs");
      const Digest blob = Digest::parse(json_string(each, "digest"));
      if (std::any_of(list.blobs.begin(), list.blobs.end(), [&](const OfBlob& other) { return other.blob == blob; }))
        throw usage_error("it names blob " + blob.brief() + " twice");
      const std::uint64_t size = size_of_blob(manifest, blob);
      std::vector<ChunkRun> runs = runs_from_json(list_member(each, "chunks"), chunks_of(size, unit));
      if (runs.size() > left)
        throw usage_error("it has more than " + std::to_string(kMostPrefetchRuns) + " runs of chunks");
      left -= runs.size();
      list.blobs.push_back({blob, resized(runs, unit, kChunkSize, size)});
    }
    return list;
  });
}

}  // namespace dsec::registry
