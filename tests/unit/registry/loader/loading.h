#pragma once

#include <future>

#include "registry/loader/loader.h"
#include "tests/unit/registry/loader/test_source.h"

namespace dsec::registry::test {

inline constexpr std::uint64_t kNoLimit = 1ull << 40;

struct Answer {
  int error = 0;
  std::string bytes;
};

/// A loader of one blob.
struct Loading {
  explicit Loading(std::size_t size, std::vector<BlobOrigin> origins = {{"file:///a"}},
                   std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000),
                   std::uint64_t limit = kNoLimit, double eager_share = 1)
      : data(random_bytes(size, 7)),
        source(data),
        cache(directory.path() / "chunks", limit),
        loader(source, cache, {.timeout = timeout, .requests = 4, .eager_share = eager_share}, {},
               [this](const std::shared_ptr<LoadedBlob>&) { ++completed; }),
        blob(loader.open({{BlobRole::Data, Digest::of(data), size}, Digest::of("chunks"), "base/x", std::move(origins)},
                         digests_of(data))) {}

  std::future<Answer> begin(std::uint64_t offset, std::size_t length) {
    auto promise = std::make_shared<std::promise<Answer>>();
    loader.read(blob, offset, length, [promise](int error, std::span<const std::byte> bytes) {
      promise->set_value({error, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
    });
    return promise->get_future();
  }
  Answer read(std::uint64_t offset, std::size_t length) { return begin(offset, length).get(); }
  std::string told() {
    std::string all;
    for (const LoaderProblem& problem : loader.problems()) all += problem.what + "\n";
    return all;
  }

  TempDirectory directory{fs::temp_directory_path()};
  const std::string data;
  TestSource source;
  ChunkCache cache;
  std::atomic<int> completed{0};
  Loader loader;
  std::shared_ptr<LoadedBlob> blob;
};

}  // namespace dsec::registry::test
