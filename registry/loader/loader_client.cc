#include "registry/loader/loader_client.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/resident.h"
#include "registry/loader/caller.h"
#include "registry/loader/protocol.h"
#include "registry/loader/served_name.h"
#include "registry/loader/shared_state.h"

namespace dsec::registry {
namespace {

constexpr int kAttempts = 3;
// The kernel closes files of what was unmounted a little later; a loader has ended when its holder has.
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kBetweenLooks{10};

Resident loader_of(const std::filesystem::path& home) {
  return {.title = "loader",
          .program = kLoaderProgram,
          .run = home / "run",
          .socket = kLoaderSocket,
          .lock = kLoaderLock,
          .log = kLoaderLog};
}

// Credentials, proxies and the place of the configuration are the caller's.
std::vector<std::string> whole_environment() {
  const Variables own = variables_of_caller();
  const ForCaller as_it_is_elsewhere(caller_variables(), own);
  return environment_for_child();
}

/// The answer and its descriptors; empty when the loader ended meanwhile.
std::optional<std::pair<Json, std::vector<UniqueFd>>> ask(int socket, const Json& request) {
  std::vector<UniqueFd> descriptors;
  try {
    send_message(socket, canonical_json(request));
  } catch (const Error&) {
    return std::nullopt;
  }
  const std::optional<std::string> text = receive_message(socket, &descriptors);
  if (!text) return std::nullopt;
  Json json = parse_json(*text, "the loader's answer");
  if (json_u64(json, "protocol") != kLoaderProtocol)
    throw failure("the loader is of another version of dsec").hint("it ends with the last sandbox that uses it");
  if (json.contains("error")) throw failure(json_string(json, "error"));
  return std::pair(std::move(json), std::move(descriptors));
}

/// Null when none runs.
Json ask_if_running(const std::filesystem::path& home, const char* op) {
  std::error_code missing;
  if (!std::filesystem::exists(home / "run", missing)) return nullptr;
  const UniqueFd socket = connect_resident(loader_of(home));
  if (!socket) return nullptr;
  auto answer = ask(socket.get(), {{"op", op}});
  return answer ? std::move(answer->first) : Json(nullptr);
}

class LoaderVisit : public engine::BlobLoader::Visit {
 public:
  LoaderVisit(UniqueFd socket, const Json& answer, std::vector<UniqueFd> descriptors)
      : socket_(std::move(socket)),
        root_(std::move(descriptors.at(0))),
        counters_(std::move(descriptors.at(1))),
        instance_(json_string(answer, "instance")),
        first_counter_(json_u64(answer.at("counters"), "first")),
        each_counter_(json_u64(answer.at("counters"), "each")) {}

  const std::string& instance() const override { return instance_; }
  UniqueFd open(const Digest& blob, const Digest& chunks) override {
    UniqueFd file(::openat(root_.get(), ServedName{blob, chunks}.str().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file) return file;
    if (errno == ENOENT)
      throw failure("blob " + blob.brief() + " is neither here nor loaded on demand").hint("pull the layer again");
    throw system_error("open blob " + blob.brief() + " at the loader");
  }

  UniqueFd counters() override {
    UniqueFd copy(::fcntl(counters_.get(), F_DUPFD_CLOEXEC, 3));
    if (!copy) throw system_error("duplicate a descriptor");
    return copy;
  }
  std::uint64_t counter(const Digest& blob, const Digest& chunks) override {
    struct stat file = {};
    if (::fstatat(root_.get(), ServedName{blob, chunks}.str().c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0)
      throw system_error("find blob " + blob.brief() + " at the loader");
    return first_counter_ + (file.st_ino - SharedState::kFirstInode) * each_counter_;
  }

 private:
  const UniqueFd socket_, root_, counters_;
  const std::string instance_;
  const std::uint64_t first_counter_, each_counter_;
};

class HomeLoader : public engine::BlobLoader {
 public:
  HomeLoader(std::filesystem::path home, std::function<UniqueFd()> open_procs)
      : home_(std::move(home)), open_procs_(std::move(open_procs)) {}

  std::unique_ptr<Visit> visit() override {
    return attempt("cannot load layers on demand", [&]() -> std::unique_ptr<Visit> {
      for (int attempt = 1; attempt <= kAttempts; ++attempt) {
        UniqueFd socket = connect_resident(loader_of(home_));
        if (!socket) socket = start();
        // One that has just ended for lack of work closes what it did not answer.
        auto answer = ask(socket.get(), {{"op", "visit"}, {"variables", variables_of_caller()}});
        if (!answer) continue;
        auto& [reply, descriptors] = *answer;
        if (descriptors.size() != 2 || !reply.contains("counters")) throw failure("the loader gave no filesystem");
        return std::make_unique<LoaderVisit>(std::move(socket), reply, std::move(descriptors));
      }
      throw failure("the loader broke off")
          .hint("its last words are in " + quote((home_ / "run" / kLoaderLog).native()));
    });
  }

  std::string running() override {
    const Json answer = ask_if_running(home_, "instance");
    return answer.is_null() ? "" : json_string(answer, "instance");
  }

  void release() override {
    const Resident loader = loader_of(home_);
    const FileLock lock = FileLock::try_lock(loader.run / loader.lock, FileLock::Mode::Exclusive);
    if (!lock || !end(loader)) return;
    for (const std::string& name : {loader.socket, loader.log}) ::unlink((loader.run / name).c_str());
  }

 private:
  // False when it is in use.
  static bool end(const Resident& loader) {
    for (int look = 0; look < kLooks; ++look) {
      {
        const UniqueFd socket = connect_resident(loader);
        if (!socket) return true;
        // No answer: it is ending.
        (void)ask(socket.get(), {{"op", "end"}});
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
    return false;
  }

  UniqueFd start() const {
    ResidentStart start;
    start.arguments = {home_.native()};
    start.environment = whole_environment();
    const UniqueFd procs = open_procs_();
    start.procs = procs.get();
    return start_resident(loader_of(home_), start);
  }

  const std::filesystem::path home_;
  const std::function<UniqueFd()> open_procs_;
};

}  // namespace

std::unique_ptr<engine::BlobLoader> make_blob_loader(const engine::Home& home, std::function<UniqueFd()> open_procs) {
  return std::make_unique<HomeLoader>(home.root(), std::move(open_procs));
}

Json loader_status(const std::filesystem::path& home) { return ask_if_running(home, "status"); }

std::vector<PrefetchList::OfBlob> loader_record(const std::filesystem::path& home) {
  std::vector<PrefetchList::OfBlob> blobs;
  if (const Json answer = ask_if_running(home, "record"); !answer.is_null())
    for (const Json& blob : answer["blobs"])
      blobs.push_back({Digest::parse(json_string(blob, "digest")),
                       runs_from_json(blob["chunks"], std::numeric_limits<std::uint64_t>::max())});
  return blobs;
}

Json on_demand_use(LocalStore& store, std::span<const Digest> layers) {
  std::set<Digest> blobs;
  std::uint64_t bytes = 0, fetched = 0;
  for (const Digest& layer : layers)
    if (const auto stored = store.find(LayerRef::of(layer)))
      for (const LayerImage& image : stored->manifest.images)
        if (const Blob* data = image.find(BlobRole::Data);
            data && store.on_demand(data->digest) && blobs.insert(data->digest).second)
          bytes += data->size;
  if (blobs.empty()) return nullptr;
  if (const Json status = loader_status(store.home().root()); !status.is_null())
    for (const Json& blob : status["blobs"])
      if (blobs.contains(Digest::parse(json_string(blob, "digest")))) fetched += json_u64(blob, "fetched");
  return {{"bytes", bytes}, {"fetched", fetched}};
}

}  // namespace dsec::registry
