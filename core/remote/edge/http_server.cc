#include "core/remote/edge/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/remote/edge/connection.h"

namespace dsec::remote {
namespace {
using std::chrono::milliseconds;

constexpr char kFull[] =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n";

}  // namespace

std::string HttpHead::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

struct HttpServer::Parts {
  Parts(UniqueFd listening, RequestHandler& handler, const ServerLimits& limits)
      : shared{handler, limits}, listener(std::move(listening)) {
    if (!stop) throw system_error("make an eventfd");
  }

  void start(unsigned threads) {
    loop.start(threads);
    acceptor = std::thread([this] { accept(); });
  }

  void accept() {
    for (;;) {
      pollfd fds[] = {{listener.get(), POLLIN, 0}, {stop.get(), POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
      if (fds[1].revents) return;
      if (!(fds[0].revents & POLLIN)) continue;
      sockaddr_storage address = {};
      socklen_t size = sizeof address;
      UniqueFd client(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC));
      if (!client) {
        // Without descriptors it would come again at once.
        if (errno == EMFILE || errno == ENFILE) ::poll(nullptr, 0, 50);
        continue;
      }
      take(std::move(client), address.ss_family);
    }
  }

  void take(UniqueFd client, int family) {
    if (family != AF_UNIX) {
      constexpr int kOn = 1;
      ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
      ::setsockopt(client.get(), SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof kOn);
    }
    // Goes after the lock, which its end takes.
    std::shared_ptr<ServedConnection> connection;
    {
      const std::lock_guard lock(mutex);
      if (open.size() < shared.limits.connections) {
        const std::uint64_t number = next++;
        connection = loop.serve(shared, std::move(client), family, [this, number] {
          const std::lock_guard guard(mutex);
          open.erase(number);
          changed.notify_all();
        });
        open[number] = connection;
      }
    }
    if (connection) return connection->begin();
    [[maybe_unused]] const ssize_t sent = ::send(client.get(), kFull, sizeof kFull - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  template <typename Call>
  void tell_all(Call&& call) {
    std::vector<std::shared_ptr<ServedConnection>> there;
    {
      const std::lock_guard lock(mutex);
      for (const auto& [number, connection] : open)
        if (auto alive = connection.lock()) there.push_back(std::move(alive));
    }
    for (const auto& connection : there) call(*connection);
  }

  void stop_accepting() {
    if (!acceptor.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop.get(), &one, sizeof one);
    acceptor.join();
    listener.reset();
  }

  ServerShared shared;
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::uint64_t, std::weak_ptr<ServedConnection>> open;
  std::uint64_t next = 0;
  EventLoop loop;
  UniqueFd listener, stop{::eventfd(0, EFD_CLOEXEC)};
  std::thread acceptor;
};

HttpServer::HttpServer(UniqueFd listener, RequestHandler& handler, const ServerLimits& limits)
    : parts_(std::make_unique<Parts>(std::move(listener), handler, limits)) {}

void HttpServer::start(unsigned threads) { parts_->start(threads); }

HttpServer::~HttpServer() {
  parts_->stop_accepting();
  parts_->loop.stop();
}

std::size_t HttpServer::connections() const {
  const std::lock_guard lock(parts_->mutex);
  return parts_->open.size();
}

bool HttpServer::drain(milliseconds time) {
  parts_->stop_accepting();
  parts_->shared.draining = true;
  parts_->tell_all([](ServedConnection& connection) { connection.drain(); });
  const auto none = [this] { return parts_->open.empty(); };
  std::unique_lock lock(parts_->mutex);
  if (parts_->changed.wait_for(lock, time, none)) return true;
  lock.unlock();
  parts_->tell_all([](ServedConnection& connection) { connection.cut(); });
  lock.lock();
  // What works for them may hold them a little longer.
  return parts_->changed.wait_for(lock, milliseconds(5'000), none);
}

}  // namespace dsec::remote
