#include "runners/egress/gateway/relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "runners/egress/gateway/socket_address.h"
#include "runners/egress/gateway/tcp_socket.h"

namespace dsec::egress {
namespace {

constexpr std::chrono::milliseconds kConnect{8'000};

}  // namespace

// The connection to the server.

std::string Relay::header_line(const HeaderSecret& secret, const std::string& value) {
  return secret.header + ": " + value + "\r\n";
}

void Relay::dial() {
  if (dialling_ || server_) return;
  dialling_ = true;
  server_port_ = target_.port;
  if (inject_) {
    const auto value = sandbox_.secret(*inject_);
    if (!value) return fail("the secret " + inject_->secret + " could not be read when the sandbox was attached");
    inject_name_ = inject_->header;
    header_ = header_line(*inject_, *value);
    server_port_ = inject_->port;
  }
  if (dialled_.empty()) return dial_addresses({target_.address.value_or(address_)});
  sandbox_.resolve(dialled_, [this, alive = std::weak_ptr<bool>(alive_)](const Resolution& result) {
    if (!alive.lock() || stage_ == Stage::Over) return;
    trouble_ = result.code == DnsCode::NoName ? "there is no such name" : "the name could not be resolved";
    dial_addresses(result.addresses);
  });
}

void Relay::dial_addresses(std::vector<IpAddress> addresses) {
  std::string denied;
  for (const IpAddress& address : addresses) {
    const NetworkVerdict verdict =
        evaluate_dial(sandbox_.policy(), address, server_port_, Transport::Tcp, sandbox_.host().owns(address));
    if (verdict.allowed)
      addresses_.push_back(address);
    else
      denied = verdict.reason;
  }
  if (addresses_.empty() && !denied.empty()) return give_up(true, denied);
  std::reverse(addresses_.begin(), addresses_.end());
  dial_next();
}

void Relay::dial_next() {
  while (!addresses_.empty()) {
    const IpAddress address = addresses_.back();
    addresses_.pop_back();
    // The policy may have been changed while another one was tried.
    if (const NetworkVerdict verdict =
            evaluate_dial(sandbox_.policy(), address, server_port_, Transport::Tcp, sandbox_.host().owns(address));
        !verdict.allowed) {
      trouble_ = verdict.reason;
      continue;
    }
    const SocketAddress to(address, server_port_);
    UniqueFd socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket || (::connect(socket.get(), to.data(), to.size()) != 0 && errno != EINPROGRESS)) {
      trouble_ = "connect to " + address.str() + ": " + errno_text(errno);
      continue;
    }
    server_address_ = address;
    server_.emplace(std::move(socket));
    keep_alive(server_->fd());
    end_by_reset(server_->fd(), true);
    return watch_connecting();
  }
  give_up(false, trouble_);
}

void Relay::watch_connecting() {
  server_watch_.reset();
  server_watch_ = std::make_unique<Watch>(loop_, server_->fd(), EPOLLOUT, [this](std::uint32_t) { on_connecting(); });
  timer_ = std::make_unique<Timer>(loop_, kConnect, [this] {
    trouble_ = "connect to " + server_address_->str() + ": " + errno_text(ETIMEDOUT);
    server_watch_.reset();
    server_.reset();
    dial_next();
  });
}

void Relay::on_connecting() {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(server_->fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    trouble_ = "connect to " + server_address_->str() + ": " + errno_text(error);
    server_watch_.reset();
    server_.reset();
    return dial_next();
  }
  if (inject_name_.empty() && !client_tls_) return connected();
  const std::string& host = client_tls_ ? tls_host_ : dialled_;
  try {
    if (!server_->tls()) server_->begin_tls(host);
  } catch (const Error& unable) {
    return fail(unable.message());
  }
  switch (server_->handshake()) {
    case ServerConnection::Io::Done:
      return connected();
    case ServerConnection::Io::Again:
      return server_watch_->want(server_->wants_to_write() ? EPOLLOUT : EPOLLIN);
    default:
      return give_up(false, "TLS with " + host + ": " + server_->error());
  }
}

void Relay::connected() {
  timer_.reset();
  dialling_ = false;
  server_watch_.reset();
  server_watch_ =
      std::make_unique<Watch>(loop_, server_->fd(), EPOLLIN, [this](std::uint32_t events) { on_server(events); });
  pump();
}

}  // namespace dsec::egress
