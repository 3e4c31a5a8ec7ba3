#include "registry/loader/server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/iso_time.h"
#include "core/base/resident.h"
#include "core/engine/home.h"
#include "registry/loader/caller.h"
#include "registry/loader/protocol.h"
#include "registry/loader/served_blobs.h"

namespace dsec::registry {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kThreads = 4;
// So that sandboxes that follow each other need no new loader each.
constexpr std::chrono::milliseconds kLinger{2000}, kTick{200}, kBetweenHolders{1000}, kWithoutHolder{10'000};

// A message goes as a whole: some 200 bytes for each blob that there can be.
constexpr int kLargestStatus = 4 << 20;

// What it tells is what happens, and a registry can have it tell more and more.
constexpr off_t kLongestLog = 4 << 20;

void log_line(const std::string& what) {
  struct stat log = {};
  if (::fstat(STDERR_FILENO, &log) == 0 && S_ISREG(log.st_mode) && log.st_size > kLongestLog &&
      ::ftruncate(STDERR_FILENO, 0) == 0)
    ::lseek(STDERR_FILENO, 0, SEEK_SET);
  std::cerr << format_iso_time(std::chrono::system_clock::now()) + " " + what + "\n" << std::flush;
}

// Of the time that a reader waits: enough is left to ask another registry.
Patience patience_for(std::chrono::milliseconds timeout) {
  return {.stall = std::max(timeout / 4, std::chrono::milliseconds(1000)), .tries = 2};
}

class Server {
 public:
  Server(const LoaderDescriptors& descriptors, UniqueFd link, const std::string& program,
         const std::filesystem::path& home)
      : descriptors_(descriptors),
        link_(std::move(link)),
        program_(program),
        home_(engine::Home::open(home)),
        store_(home_),
        state_(descriptors.memory),
        counters_(open_file("/proc/self/fd/" + std::to_string(descriptors.memory.get()), O_RDONLY)),
        settings_(Config::load().on_demand.value_or(OnDemandConfig{})),
        cache_(store_.chunks(), settings_.cache_bytes),
        source_(registry_source(log_line, patience_for(settings_.timeout))),
        blobs_(store_, state_, *source_, cache_, {.timeout = settings_.timeout, .eager_share = settings_.eager_share},
               settings_.fill, log_line),
        session_(descriptors.device, state_, blobs_),
        gone_(::eventfd(0, EFD_CLOEXEC)) {}

  void run(UniqueFd ready) {
    const auto gone = [this] {
      const std::uint64_t one = 1;
      if (::write(gone_.get(), &one, sizeof one) < 0) ::_exit(1);
    };
    session_.start(kThreads, gone, log_line);
    tell_holder(link_.get());
    if (ready && ::write(ready.get(), "1", 1) < 0) log_line("tell that it is ready: " + errno_text(errno));
    ready.reset();
    while (!poll_once()) {
    }
    end_holder(link_.get());
  }

 private:
  // True when all is over.
  bool poll_once() {
    if (!link_ && Clock::now() >= holder_after_) replace_holder();
    std::vector<pollfd> fds = {
        {listens() ? descriptors_.listener.get() : -1, POLLIN, 0}, {link_.get(), POLLIN, 0}, {gone_.get(), POLLIN, 0}};
    for (const UniqueFd& client : clients_) fds.push_back({client.get(), POLLIN, 0});
    const int found = ::poll(fds.data(), fds.size(), static_cast<int>(kTick.count()));
    if (found < 0 && errno != EINTR) throw system_error("poll");
    if (found <= 0) return is_idle();
    if (fds[2].revents) return true;
    if (fds[1].revents) link_.reset();
    auto client = clients_.begin();
    for (std::size_t i = 3; i < fds.size(); ++i) {
      if (!fds[i].revents || answer(*client))
        ++client;
      else
        client = clients_.erase(client);
      // Closing all connections without an answer tells that it is done.
      if (asked_to_end_) return true;
    }
    if (fds[0].revents) accept();
    return is_idle();
  }

  // What kills it again and again shall not keep the processor busy.
  void replace_holder() {
    holder_after_ = Clock::now() + kBetweenHolders;
    try {
      link_ = start_holder(descriptors_, program_, home_.root().native());
    } catch (const Error& error) {
      // Without one all goes on, until this process dies, too.
      log_line(error.message());
      holder_after_ = Clock::now() + kWithoutHolder;
    }
  }

  bool is_idle() {
    if (!clients_.empty() || state_.handles() > 0 || blobs_.busy()) {
      idle_since_.reset();
      return false;
    }
    if (!idle_since_) idle_since_ = Clock::now();
    return Clock::now() - *idle_since_ >= kLinger;
  }

  bool listens() const { return Clock::now() >= deaf_until_; }

  void accept() {
    UniqueFd client(::accept4(descriptors_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) {
      // Whoever could not be accepted for lack of descriptors stays in the queue, and would wake poll() at once.
      deaf_until_ = Clock::now() + kTick;
      return;
    }
    ucred peer = {};
    socklen_t size = sizeof peer;
    if (::getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        (peer.uid != 0 && peer.uid != ::geteuid()))
      return;
    const timeval patience = {2, 0};
    ::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::setsockopt(client.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kLargestStatus, sizeof kLargestStatus) != 0)
      ::setsockopt(client.get(), SOL_SOCKET, SO_SNDBUF, &kLargestStatus, sizeof kLargestStatus);
    clients_.push_back(std::move(client));
  }

  // False when the client is gone, or is to go.
  bool answer(const UniqueFd& client) {
    Json reply;
    std::vector<int> descriptors;
    try {
      const std::optional<std::string> text = receive_message(client.get());
      if (!text) return false;
      const Json request = parse_json(*text, "request");
      const std::string op = json_string(request, "op");
      if (op == "visit") {
        add_caller(request);
        // Where who is of another release finds what it counts.
        const std::uint64_t first = SharedState::place_of_fetched(SharedState::kFirstInode);
        reply["counters"] = {{"first", first},
                             {"each", SharedState::place_of_fetched(SharedState::kFirstInode + 1) - first}};
        descriptors = {descriptors_.root.get(), counters_.get()};
      } else if (op == "status")
        reply = blobs_.status();
      else if (op == "record")
        reply = blobs_.record();
      else if (op == "instance")
        reply = Json::object();  // it stands in each answer
      else if (op == "end")
        asked_to_end_ = clients_.size() == 1 && state_.handles() == 0 && !blobs_.busy();
      else
        throw usage_error("unknown request " + quote(op));
      if (asked_to_end_) return false;
      reply["pid"] = ::getpid();
    } catch (const Error& error) {
      reply = {{"error", error.message()}};
    }
    reply["protocol"] = kLoaderProtocol;
    reply["instance"] = state_.instance();
    try {
      send_message(client.get(), canonical_json(reply), descriptors);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // Who comes brings logins that may be newer than those of who came before, or another's.
  void add_caller(const Json& visit) {
    const auto given = visit.find("variables");
    if (given == visit.end()) return;
    Variables caller;
    for (const std::string& name : caller_variables())
      if (std::string value = json_string_or(*given, name.c_str(), ""); !value.empty()) caller.emplace(name, value);
    source_->add_caller(caller);
  }

  const LoaderDescriptors& descriptors_;
  UniqueFd link_;
  const std::string program_;
  const engine::Home home_;
  LocalStore store_;
  SharedState state_;
  const UniqueFd counters_;  ///< the same memory, for reading
  const OnDemandConfig settings_;
  ChunkCache cache_;
  std::unique_ptr<ChunkSource> source_;
  ServedBlobs blobs_;
  FuseSession session_;
  const UniqueFd gone_;
  std::list<UniqueFd> clients_;
  std::optional<Clock::time_point> idle_since_;
  Clock::time_point deaf_until_, holder_after_;
  bool asked_to_end_ = false;
};

}  // namespace

void serve(const LoaderDescriptors& descriptors, UniqueFd link, UniqueFd ready, const std::string& program,
           const std::filesystem::path& home) {
  // A home that was removed while it was in use must not come back as an empty one.
  if (!std::filesystem::exists(home / "format"))
    throw failure("there is no dsec home at " + quote(home.native()) + " any more");
  // Never destroyed: threads that wait for the kernel or for a registry end with the process.
  auto* const server = new Server(descriptors, std::move(link), program, home);
  server->run(std::move(ready));
}

}  // namespace dsec::registry
