#include "core/engine/port_forward.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

// One direction of a connection: what was read and not yet written, and whether its source has ended.
struct Direction {
  int from, to;
  std::array<char, 64 << 10> buffer;
  std::size_t begin = 0, end = 0;
  bool ended = false, closed = false;

  bool done() const { return closed; }
  bool wants_read() const { return !ended && begin == end; }
  bool wants_write() const { return begin < end; }
};

// False when the connection has failed. `came` is called when something came.
bool move(Direction& way, const std::function<void()>& came = nullptr) {
  if (way.wants_read()) {
    const ssize_t got = ::recv(way.from, way.buffer.data(), way.buffer.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (came) came();
    way.begin = 0;
    way.end = static_cast<std::size_t>(got);
    way.ended = got == 0;
  }
  while (way.wants_write()) {
    const ssize_t sent =
        ::send(way.to, way.buffer.data() + way.begin, way.end - way.begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    way.begin += static_cast<std::size_t>(sent);
  }
  if (way.ended && !way.closed) {
    // The other direction may go on.
    ::shutdown(way.to, SHUT_WR);
    way.closed = true;
  }
  return true;
}

void relay(int left, int right, int stop, const std::function<void()>& came) {
  const auto there = std::make_unique<Direction>(Direction{.from = left, .to = right, .buffer = {}});
  const auto back = std::make_unique<Direction>(Direction{.from = right, .to = left, .buffer = {}});
  while (!there->done() || !back->done()) {
    const auto events = [](const Direction& in, const Direction& out) {
      return static_cast<short>((in.wants_read() ? POLLIN : 0) | (out.wants_write() ? POLLOUT : 0));
    };
    pollfd fds[] = {{left, events(*there, *back), 0}, {right, events(*back, *there), 0}, {stop, POLLIN, 0}};
    // poll(2) tells of a reset connection that nobody asks for, again and again.
    for (pollfd& fd : fds)
      if (fd.events == 0) fd.fd = -1;
    if (::poll(fds, 3, -1) < 0 && errno != EINTR) return;
    if (fds[2].revents || !move(*there, came) || !move(*back)) return;
  }
}

// Waits for its threads, which use what the caller has on its stack.
class Connections {
 public:
  template <typename Work>
  void start(Work&& work) {
    {
      const std::lock_guard lock(mutex_);
      ++count_;
    }
    std::thread([this, work = std::forward<Work>(work)]() mutable {
      work();
      const std::lock_guard lock(mutex_);
      --count_;
      changed_.notify_all();
    }).detach();
  }
  bool none() {
    const std::lock_guard lock(mutex_);
    return count_ == 0;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Keeps a sandbox from being idle while connections are open, and resumes it for what comes through them.
class Wakefulness {
 public:
  Wakefulness(Engine& engine, std::string id)
      : engine_(engine), id_(std::move(id)), signal_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!signal_) throw system_error("make an eventfd");
  }

  /// Readable when something has come.
  int descriptor() const { return signal_.get(); }
  /// From any thread.
  void came() {
    if (came_.exchange(true)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(signal_.get(), &one, sizeof one);
  }

  /// How long may be waited until look() has to be called.
  std::chrono::milliseconds rest() const {
    using namespace std::chrono;
    return duration_cast<milliseconds>(std::max(next_ - steady_clock::now(), steady_clock::duration(0)));
  }
  /// When it is time.
  void look() {
    if (rest().count() > 0) return;
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(signal_.get(), &count, sizeof count);
    const bool came = came_.exchange(false);
    std::chrono::milliseconds interval = kLongest;
    try {
      const SandboxInfo info = engine_.inspect(id_);
      for (const auto& limit : {info.spec.idle, info.spec.idle_pause})
        if (limit) interval = std::clamp(*limit / 3, kShortest, interval);
      const bool may_idle = info.spec.idle || info.spec.idle_pause;
      // A pause that was asked for lasts until something comes.
      if (info.state == SandboxState::Paused ? came : may_idle) engine_.resume(id_, {.recorded = false});
    } catch (const Error&) {
      // It has ended, which its watcher tells.
    }
    next_ = std::chrono::steady_clock::now() + interval;
  }

 private:
  static constexpr std::chrono::milliseconds kShortest{20}, kLongest{500};
  Engine& engine_;
  const std::string id_;
  const UniqueFd signal_;
  std::atomic<bool> came_ = false;
  std::chrono::steady_clock::time_point next_;
};

struct Address {
  std::string host = "127.0.0.1", port;
};

Address parse_address(const std::string& text) {
  Address address;
  const std::size_t colon = text.rfind(':');
  address.port = text.substr(colon == std::string::npos ? 0 : colon + 1);
  if (colon != std::string::npos) address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  if (address.port.empty() || address.port.size() > 5 ||
      address.port.find_first_not_of("0123456789") != std::string::npos || std::stoi(address.port) > 65535)
    throw usage_error(quote(text) + " is no address to listen at").hint("PORT, ADDRESS:PORT or [ADDRESS]:PORT");
  return address;
}

std::string name_of(int socket) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage;
  char host[128] = "", port[16] = "";
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    throw system_error("name the address of a socket");
  const std::string text = host;
  return (text.find(':') == std::string::npos ? text : "[" + text + "]") + ":" + port;
}

}  // namespace

UniqueFd listen_at(const std::string& text, std::string& bound) {
  const Address address = parse_address(text);
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) != 0)
    throw usage_error(quote(address.host) + " is no address of this host").hint("127.0.0.1, ::1 or one of its others");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("make a socket");
  constexpr int kOn = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.get(), 512) != 0)
    throw system_error("listen at " + text);
  bound = name_of(socket.get());
  return socket;
}

void forward_port(Engine& engine, const std::string& id, int listener, std::uint16_t port,
                  const std::function<void(const Error&)>& failed) {
  forward_connections(
      engine, id, listener, [&] { return engine.connect(id, port); }, failed);
}

void forward_connections(Engine& engine, const std::string& id, int listener, const std::function<UniqueFd()>& connect,
                         const std::function<void(const Error&)>& failed) {
  const UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop) throw system_error("make an eventfd");
  const auto tell_stop = [&] {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop.get(), &one, sizeof one);
  };
  std::thread watcher([&] {
    try {
      engine.wait(id, std::nullopt);
    } catch (const Error&) {
      // It cannot be asked any more: it is gone.
    }
    tell_stop();
  });
  Connections connections;
  Wakefulness wakefulness(engine, id);
  for (;;) {
    pollfd fds[] = {{listener, POLLIN, 0}, {stop.get(), POLLIN, 0}, {wakefulness.descriptor(), POLLIN, 0}};
    const bool none = connections.none();
    const auto rest = wakefulness.rest();
    // What comes before it is time waits until then.
    if (none || rest.count() > 0) fds[2].fd = -1;
    if (::poll(fds, 3, none ? -1 : static_cast<int>(rest.count())) < 0 && errno != EINTR) break;
    if (fds[1].revents) break;
    if (!none) wakefulness.look();
    if (!fds[0].revents) continue;
    UniqueFd client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) {
      // Without descriptors it would come again at once.
      if (errno == EMFILE || errno == ENFILE) ::poll(nullptr, 0, 50);
      continue;
    }
    constexpr int kOn = 1;
    ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
    connections.start([&, client = std::move(client)] {
      try {
        const UniqueFd server = connect();
        wakefulness.came();
        relay(client.get(), server.get(), stop.get(), [&] { wakefulness.came(); });
      } catch (const Error& error) {
        failed(error);
      }
    });
  }
  watcher.join();
  connections.wait();
}

}  // namespace dsec::engine
