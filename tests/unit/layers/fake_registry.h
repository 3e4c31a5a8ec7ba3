#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>

#include "core/engine/remote_image.h"
#include "tests/unit/layers/image_builder.h"

/// An image in a registry: the blobs of a layout, and what happens while one is fetched.
struct FakeRegistry {
  dsec::TempDirectory directory{std::filesystem::temp_directory_path()};
  ImageBuilder builder{directory.path() / "layout"};
  dsec::Json root;
  /// Called with the index of the piece and the digest before each half of a blob.
  std::function<void(const dsec::Digest&, int)> before = [](const dsec::Digest&, int) {};
  /// What a place gives of a blob that the next one gives rightly; empty: nothing.
  std::function<std::string(const dsec::Digest&)> at_first = [](const dsec::Digest&) { return std::string(); };
  std::atomic<bool> cancelled = false;
  std::atomic<int> now = 0, most = 0;
};

class FakeImage : public dsec::engine::RemoteImage {
 public:
  explicit FakeImage(FakeRegistry& registry) : registry_(registry) {}
  Root root() override {
    return {dsec::Digest::parse(registry_.root["digest"].get<std::string>()),
            registry_.root["size"].get<std::uint64_t>(), ""};
  }
  std::string manifest(const dsec::Digest& digest) override { return bytes(digest); }
  std::string document(const dsec::Digest& digest) override { return bytes(digest); }
  void fetch(const dsec::Digest& digest, std::uint64_t size, Sink& sink) override {
    int seen = registry_.most;
    for (const int now = ++registry_.now; now > seen && !registry_.most.compare_exchange_weak(seen, now);) continue;
    const std::string content = bytes(digest);
    REQUIRE(content.size() == size);
    if (const std::string wrong = registry_.at_first(digest); !wrong.empty()) {
      sink.piece(wrong);
      registry_.before(digest, 0);
      sink.anew();
    }
    registry_.before(digest, 0);
    sink.piece(std::string_view(content).substr(0, size / 2));
    registry_.before(digest, 1);
    sink.piece(std::string_view(content).substr(size / 2));
    --registry_.now;
  }
  void cancel() override { registry_.cancelled = true; }
  std::string name() const override { return "h.example/x:1"; }

 private:
  std::string bytes(const dsec::Digest& digest) { return dsec::read_file(registry_.builder.blob_path(digest)); }
  FakeRegistry& registry_;
};

inline dsec::engine::OpenRemoteImage opener(FakeRegistry& registry) {
  return [&](const std::string&, dsec::Progress&) { return std::make_unique<FakeImage>(registry); };
}
