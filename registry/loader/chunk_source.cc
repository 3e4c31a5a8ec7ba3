#include "registry/loader/chunk_source.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/config.h"
#include "registry/loader/caller.h"
#include "registry/registries.h"

namespace dsec::registry {
namespace {

constexpr int kTries = 3, kTriesForWrongBytes = 2;
constexpr std::chrono::milliseconds kFirstRest{100};
// Whoever came before so many others has to come again.
constexpr std::size_t kMostCallers = 8;

class Warnings : public Progress {
 public:
  explicit Warnings(std::function<void(const std::string&)> warn) : warn_(std::move(warn)) {}
  void warn(std::string_view message) override { warn_(std::string(message)); }

 private:
  const std::function<void(const std::string&)> warn_;
};

class RegistrySource : public ChunkSource {
 public:
  RegistrySource(std::function<void(const std::string&)> warn, const Patience& patience)
      : warnings_(std::move(warn)), patience_(patience) {
    add_caller(variables_of_caller());
  }

  void read(const BlobOrigin& origin, const RemoteBlob& blob, std::uint64_t offset,
            std::span<std::byte> bytes) override {
    std::exception_ptr first;
    const auto began = Clock::now();
    for (const Caller& caller : callers_for(origin.registry)) {
      try {
        read_as(caller, origin, blob, offset, bytes);
        const std::lock_guard lock(mutex_);
        good_[origin.registry] = caller;
        return;
      } catch (const Error&) {
        if (!first) first = std::current_exception();
        // A login is refused at once; who does not answer one caller in time answers no other. Whoever waits has no
        // more time than that for all of them.
        if (Clock::now() - began >= patience_.stall) break;
      }
    }
    std::rethrow_exception(first);
  }

  void distrust(const BlobOrigin& origin) override {
    std::vector<std::shared_ptr<Registry>> registries;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [key, registry] : open_)
        if (key.first == origin.registry) registries.push_back(registry);
    }
    for (const auto& registry : registries) registry->distrust();
  }

  void add_caller(const Variables& caller) override {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(callers_.begin(), callers_.end(), [&](const Caller& c) { return *c == caller; });
    const Caller added = known == callers_.end() ? std::make_shared<const Variables>(caller) : *known;
    if (known != callers_.end()) callers_.erase(known);
    callers_.push_front(added);
    if (callers_.size() <= kMostCallers) return;
    std::erase_if(open_, [&](const auto& each) { return each.first.second == callers_.back(); });
    callers_.pop_back();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Caller = std::shared_ptr<const Variables>;
  using Key = std::pair<std::string, Caller>;

  std::vector<Caller> callers_for(const std::string& url) {
    const std::lock_guard lock(mutex_);
    std::vector<Caller> callers(callers_.begin(), callers_.end());
    if (const auto good = good_.find(url); good != good_.end()) {
      std::erase(callers, good->second);
      callers.insert(callers.begin(), good->second);
    }
    return callers;
  }

  void read_as(const Caller& caller, const BlobOrigin& origin, const RemoteBlob& blob, std::uint64_t offset,
               std::span<std::byte> bytes) {
    const ForCaller as_caller(caller_variables(), *caller);
    const std::shared_ptr<Registry> registry = open(caller, origin);
    try {
      registry->read_range(blob.blob, offset, bytes);
    } catch (const Error&) {
      // A directory may have been mounted anew, and credentials may have become others.
      const std::lock_guard lock(mutex_);
      const auto found = open_.find({origin.registry, caller});
      if (found != open_.end() && found->second == registry) open_.erase(found);
      throw;
    }
  }

  std::shared_ptr<Registry> open(const Caller& caller, const BlobOrigin& origin) {
    const Key key{origin.registry, caller};
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = open_.find(key); found != open_.end()) return found->second;
    }
    // Not under the lock: another registry may answer meanwhile.
    RegistryAddress address = find_registry(Config::load(), origin.registry);
    address.allow_any_fs = address.allow_any_fs || origin.allow_any_fs;
    std::shared_ptr<Registry> opened = open_registry(address, patience_, warnings_);
    const std::lock_guard lock(mutex_);
    return open_.emplace(key, std::move(opened)).first->second;
  }

  Warnings warnings_;
  const Patience patience_;
  std::mutex mutex_;
  std::deque<Caller> callers_;          ///< those that came last first
  std::map<std::string, Caller> good_;  ///< by registry: whose login it took last
  std::map<Key, std::shared_ptr<Registry>> open_;
};

void check_chunks(const ChunkDigests& digests, std::uint64_t first, std::span<const std::byte> bytes) {
  for (std::uint64_t chunk = first; !bytes.empty(); ++chunk) {
    const std::size_t size = std::min(digests.size_of(chunk), bytes.size());
    if (!digests.fits(chunk, bytes.subspan(0, size))) throw WrongBytes(chunk);
    bytes = bytes.subspan(size);
  }
}

}  // namespace

std::unique_ptr<ChunkSource> registry_source(std::function<void(const std::string&)> warn, const Patience& patience) {
  return std::make_unique<RegistrySource>(std::move(warn), patience);
}

WrongBytes::WrongBytes(std::uint64_t chunk)
    : Error(ErrorKind::Failed,
            "the registry's bytes of chunk " + std::to_string(chunk) + " are not those of the layer") {}

void read_chunks(ChunkSource& source, OriginHealth& health, const ChunkRequest& request,
                 const ChunkRequestCalls& calls) {
  std::exception_ptr last;
  bool any_wrong = false;
  std::map<std::string, int> wrong;  // by registry: how often it had wrong bytes
  for (int round = 1; round <= kTries; ++round) {
    bool any_broken = false;
    const bool anew = round > 1 || health.all_failed_lately(request.blob.origins);
    const std::vector<BlobOrigin> origins = anew ? source.origins(request.blob) : request.blob.origins;
    for (const BlobOrigin& origin : health.in_order(origins)) {
      if (wrong[origin.registry] == kTriesForWrongBytes) continue;
      if (!calls.wanted()) throw failure("nobody waits for it any longer");
      try {
        source.read(origin, request.blob, request.first * request.digests.chunk_size(), request.bytes);
        check_chunks(request.digests, request.first, request.bytes);
        health.tell(origin.registry, true);
        return;
      } catch (const Error& error) {
        health.tell(origin.registry, false);
        const bool is_wrong = dynamic_cast<const WrongBytes*>(&error) != nullptr;
        if (is_wrong) {
          ++wrong[origin.registry];
          source.distrust(origin);
        }
        any_broken = any_broken || !is_wrong;
        any_wrong = any_wrong || is_wrong;
        if (!any_wrong || is_wrong) last = std::current_exception();
        Error told = error;
        calls.tell(told.context("cannot load blob " + request.blob.blob.digest.str() + " of layer " +
                                request.blob.layer + " from " + origin.registry));
      }
    }
    if (any_broken && round < kTries) std::this_thread::sleep_for(kFirstRest * round * round);
  }
  if (!last) throw failure("no registry is known that has it");
  std::rethrow_exception(last);
}

}  // namespace dsec::registry
