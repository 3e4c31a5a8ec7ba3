#include <asm/socket.h>
#include <linux/eventpoll.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/tcp.h>

#include "runners/guest/machine_channel.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

// What the sandbox of a guest sends leaves by the network namespace of its VMM, where the egress gateway has its
// sockets as in that of a container. So this end decides nothing: it makes the socket, passes bytes on, and tells each
// side when the other has ended or broken off.

namespace dsec::guest {
namespace {

constexpr int kInternet = 2, kInternet6 = 10, kSocketLevel = 1, kTcpLevel = 6;
// Of what a socket has, before others get their turn.
constexpr unsigned kReadsInTurn = 4;
constexpr size_t kLengthSize = sizeof(uint16_t);
char chunk[kLengthSize + 65536];

struct Destination {
  char address[16];
  uint16_t port;

  bool is_mapped() const {
    static constexpr char kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '\xff', '\xff'};
    return memcmp(address, kMapped, sizeof kMapped) == 0;
  }
};

uint16_t big_endian(uint16_t value) { return static_cast<uint16_t>(value << 8 | value >> 8); }

// A socket stays in the namespace that it was made in.
long make_socket(int family, int type) {
  const long joined = sys(__NR_setns, keeper.config.network_fd, CLONE_NEWNET);
  if (joined < 0) return joined;
  const long fd = sys(__NR_socket, family, type | O_NONBLOCK | O_CLOEXEC, 0);
  // What this process does next belongs to the host.
  if (sys(__NR_setns, keeper.origin_network, CLONE_NEWNET) < 0) exit_now(1);
  return fd;
}

long connect_to(const Destination& to, channel::Protocol protocol) {
  const bool four = to.is_mapped(), tcp = protocol == channel::Protocol::Tcp;
  const long fd = make_socket(four ? kInternet : kInternet6, tcp ? 1 : 2);
  if (fd < 0) return fd;
  const int on = 1;
  if (tcp) sys(__NR_setsockopt, fd, kTcpLevel, TCP_NODELAY, &on, sizeof on);
  sockaddr_in old = {};
  old.sin_family = kInternet;
  old.sin_port = big_endian(to.port);
  memcpy(&old.sin_addr, to.address + 12, 4);
  sockaddr_in6 six = {};
  six.sin6_family = kInternet6;
  six.sin6_port = old.sin_port;
  memcpy(&six.sin6_addr, to.address, 16);
  const long done = four ? sys(__NR_connect, fd, &old, sizeof old) : sys(__NR_connect, fd, &six, sizeof six);
  if (done >= 0 || done == -EINPROGRESS) return fd;
  close_fd(static_cast<int>(fd));
  return done;
}

int error_of(int socket) {
  int error = 0, size = sizeof error;
  sys(__NR_getsockopt, socket, kSocketLevel, SO_ERROR, &error, &size);
  return error;
}

void break_off(GuestStream& stream, long error) { leave(stream, static_cast<uint32_t>(-error)); }

// The guest has said its last word, and this end has passed it on.
void end_connection(GuestStream& stream) {
  const struct { int on, seconds; } by_reset = {1, 0};
  if (stream.error) sys(__NR_setsockopt, stream.socket.fd, kSocketLevel, SO_LINGER, &by_reset, sizeof by_reset);
  leave(stream);
}

void drain(GuestStream& stream) {
  size_t done = 0;
  long sent = 0;
  while (done < stream.in.size) {
    sent = send_some(stream.socket.fd, stream.in.data + done, stream.in.size - done);
    if (sent == -EINTR) continue;
    if (sent <= 0) break;
    done += static_cast<size_t>(sent);
  }
  stream.in.consume(done);
  take(stream, done);
  if (sent < 0 && sent != -EAGAIN) return stream.closed ? end_connection(stream) : break_off(stream, sent);
  if (stream.in.size) return;
  if (stream.closed) return end_connection(stream);
  constexpr int kWriting = 1;
  if (stream.guest_ends) sys(__NR_shutdown, stream.socket.fd, kWriting);
}

void read_connection(GuestStream& stream) {
  for (unsigned i = 0; i < kReadsInTurn && stream.credit && !stream.ends && !channel_is_full(); ++i) {
    const size_t most = stream.credit < channel::kMaxData ? static_cast<size_t>(stream.credit) : channel::kMaxData;
    const long got = read_fd(stream.socket.fd, chunk, most);
    if (got == -EAGAIN || got == -EINTR) return;
    if (got < 0) return break_off(stream, got);
    if (got == 0) return put_end(stream);
    put(stream, chunk, static_cast<size_t>(got));
  }
}

void on_connection(GuestStream& stream, uint32_t events) {
  if (events & EPOLLOUT) drain(stream);
  if (!stream.left) read_connection(stream);
  if (stream.left) return;
  const int error = events & EPOLLERR ? error_of(stream.socket.fd) : 0;
  if (error) return break_off(stream, -error);
  // What it has said before waits for credit; the kernel would go on telling of its end.
  stream.hung_up |= (events & EPOLLHUP) != 0;
}

void read_datagrams(GuestStream& stream) {
  for (unsigned i = 0; i < kReadsInTurn; ++i) {
    const long got = read_fd(stream.socket.fd, chunk + kLengthSize, sizeof chunk - kLengthSize);
    if (got < 0) return;
    // What does not fit is lost, as on any network.
    if (stream.credit < static_cast<size_t>(got) + kLengthSize || channel_is_full()) continue;
    const auto length = static_cast<uint16_t>(got);
    memcpy(chunk, &length, kLengthSize);
    put(stream, chunk, static_cast<size_t>(got) + kLengthSize);
  }
}

void send_datagrams(GuestStream& stream) {
  size_t at = 0;
  while (stream.in.size - at >= kLengthSize) {
    uint16_t length = 0;
    memcpy(&length, stream.in.data + at, kLengthSize);
    if (stream.in.size - at - kLengthSize < length) break;
    send_some(stream.socket.fd, stream.in.data + at + kLengthSize, length);
    at += kLengthSize + length;
  }
  stream.in.consume(at);
  take(stream, at);
}

}  // namespace

bool accept_egress(uint32_t number, wire::Reader& reader) {
  const auto service = static_cast<channel::Service>(reader.u16());
  const auto protocol = static_cast<channel::Protocol>(reader.u16());
  Destination to = {};
  to.port = reader.u16();
  const Text address = reader.str();
  const bool tcp = protocol == channel::Protocol::Tcp;
  if (!reader.ok() || reader.left() || service != channel::Service::Egress || address.size != sizeof to.address ||
      (!tcp && protocol != channel::Protocol::Udp) || keeper.origin_network <= 0)
    return false;
  memcpy(to.address, address.data, sizeof to.address);
  GuestStream* const stream = accept_guest_stream(number, tcp ? GuestStream::Kind::Connection : GuestStream::Kind::Flow,
                                                  tcp ? channel::kConnectionWindow : channel::kFlowWindow);
  if (!stream) return false;
  const long fd = too_many_guest_streams() ? -EMFILE : connect_to(to, protocol);
  if (fd < 0) return break_off(*stream, fd), true;
  stream->socket.fd = static_cast<int>(fd);
  update_egress(*stream);
  return true;
}

void update_egress(GuestStream& stream) {
  if (stream.left || stream.socket.fd < 0) return;
  if (stream.kind == GuestStream::Kind::Flow) return watch(stream.socket, EPOLLIN);
  const bool reads = !stream.ends && stream.credit && !channel_is_full();
  const bool writes = stream.in.size;
  const bool over = stream.ends && stream.guest_ends;
  if (!reads && !writes && (over || stream.hung_up)) return unwatch(stream.socket);
  // That it was reset is told in any case.
  watch(stream.socket, EPOLLERR | (reads ? EPOLLIN : 0u) | (writes ? EPOLLOUT : 0u));
}

void on_egress(GuestStream& stream, uint32_t events) {
  if (stream.left) return;
  stream.kind == GuestStream::Kind::Flow ? read_datagrams(stream) : on_connection(stream, events);
  update_egress(stream);
}

void on_egress_data(GuestStream& stream, const char* data, size_t size) {
  if (stream.in.size + size > stream.window) return lose_machine("its guest broke the protocol of the channel");
  stream.in.append(data, size);
  if (stream.kind == GuestStream::Kind::Flow) return send_datagrams(stream);
  drain(stream);
  update_egress(stream);
}

void on_egress_end(GuestStream& stream) {
  if (stream.kind == GuestStream::Kind::Flow) return;
  drain(stream);
  update_egress(stream);
}

void on_egress_closed(GuestStream& stream) {
  if (stream.kind == GuestStream::Kind::Flow || stream.error) return end_connection(stream);
  drain(stream);
  update_egress(stream);
}

}  // namespace dsec::guest
