#include "runners/egress/gateway/relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

namespace dsec::egress {
namespace {

constexpr std::size_t kRead = 64 << 10;
constexpr unsigned kMostQueries = 64;

}  // namespace

// Bytes, both ways.

void Relay::on_client(std::uint32_t events) {
  if (stage_ == Stage::Over) return;
  if ((events & EPOLLERR) != 0) return finish(stage_ == Stage::Pass ? "allow" : "fail", "the sandbox broke it off");
  if ((events & (EPOLLIN | EPOLLHUP)) != 0 && !read_client()) return;
  pump();
}

void Relay::on_server(std::uint32_t events) {
  if (stage_ == Stage::Over) return;
  // In between a server that speaks first decides what this is: neither TLS nor HTTP.
  if (stage_ == Stage::Sniff && !decided_ && !client_tls_ && raw_.empty() && (events & EPOLLIN) != 0) {
    kind_ = Kind::Raw;
    first_line_.emplace();
    if (hides("it is neither TLS nor HTTP")) return;
    decided_ = true;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !read_server()) return;
  pump();
}

// False when it is over.
bool Relay::read_client() {
  if (stage_ == Stage::Answer) {
    // Read away, so that the answer is not thrown away by a reset.
    char rest[4096];
    const ssize_t got = ::recv(client_.get(), rest, sizeof rest, 0);
    if (got > 0 || (got < 0 && errno == EAGAIN)) return true;
    finish("", "");
    return false;
  }
  while (raw_.size() + to_server_.size() < kBuffer && !client_ended_) {
    char buffer[kRead];
    const ssize_t got = ::recv(client_.get(), buffer, sizeof buffer, 0);
    if (got > 0) {
      const std::string_view bytes(buffer, static_cast<std::size_t>(got));
      if (client_tls_)
        client_tls_->feed(bytes);
      else
        raw_ += bytes;
      if (client_tls_ && !take_plain()) return false;
      if (bytes.size() < sizeof buffer) return true;
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got < 0) {
      if (stage_ == Stage::Pass)
        reset("allow", "the sandbox broke it off");
      else
        reset("fail", "the sandbox broke it off");
      return false;
    }
    client_ended_ = true;
  }
  return true;
}

// What its TLS carries, as far as there is room. False when it is over.
bool Relay::take_plain() {
  while (raw_.size() < kBuffer && !client_ended_) {
    switch (client_tls_->read(raw_)) {
      case ClientTls::Io::Done:
        break;
      case ClientTls::Io::Again:
        return true;
      case ClientTls::Io::End:
        client_ended_ = true;
        break;
      case ClientTls::Io::Failed:
        reset(stage_ == Stage::Pass ? "allow" : "fail",
              "intercepted: the sandbox ended its TLS: " + client_tls_->error());
        return false;
    }
  }
  return true;
}

// As send(2) does.
ssize_t Relay::put_client(std::string_view bytes) {
  if (!client_tls_) return ::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::size_t size = 0;
  const ClientTls::Io io = client_tls_->write(bytes, size);
  if (io == ClientTls::Io::Done) return static_cast<ssize_t>(size);
  errno = io == ClientTls::Io::Again ? EAGAIN : EPIPE;
  return -1;
}

// That no more comes.
void Relay::end_client() {
  if (std::exchange(told_client_, true)) return;
  if (client_tls_) client_tls_->end_writing();
  ::shutdown(client_.get(), SHUT_WR);
}

bool Relay::read_server() {
  if (!server_ || stage_ == Stage::Answer) return true;
  while (to_client_.size() < kBuffer && !server_ended_) {
    char buffer[kRead];
    std::size_t size = sizeof buffer;
    switch (server_->read(buffer, size)) {
      case ServerConnection::Io::Done:
        to_client_.append(buffer, size);
        received_ += size;
        if (!agreement_.empty()) hear_agreement({buffer, size});
        if (!sandbox_.count(0, size)) return true;
        if (size < sizeof buffer && !server_->tls()) return true;
        break;
      case ServerConnection::Io::Again:
        return true;
      case ServerConnection::Io::End:
        server_ended_ = true;
        break;
      case ServerConnection::Io::Failed: {
        const std::string error = server_->error();
        // What it sent before is still its answer.
        flush_client();
        reset("allow", "the server broke it off: " + error);
        return false;
      }
    }
  }
  return true;
}

// Whatever can go on now does.
void Relay::pump() {
  if (stage_ == Stage::Over) return;
  if (client_tls_ && stage_ != Stage::Answer && !take_plain()) return;
  if (stage_ == Stage::Answer) {
    flush_client();
    if (stage_ == Stage::Answer) update();
    return;
  }
  if (stage_ == Stage::Dns) {
    answer_dns();
    flush_client();
    if (stage_ == Stage::Over) return;
    if (client_ended_ && queries_ == 0 && to_client_.empty()) return finish("", "");
    return update();
  }
  if (stage_ == Stage::Sniff && !decided_) {
    if (!raw_.empty()) return sniff(), stage_ != Stage::Over && !decided_ ? update() : void();
    if (client_ended_ && !rule_.starts_with("no ") && !proxy_) return finish("allow", rule_);
    if (client_ended_) return finish("deny", "it said nothing that names a host");
    return update();
  }
  if (stage_ == Stage::Sniff && !given_up_.empty()) return given_up_is_denial_ ? refuse(given_up_) : fail(given_up_);
  if (stage_ == Stage::Sniff) {
    stage_ = Stage::Connect;
    if (!server_) timer_.reset();
  }
  if (stage_ == Stage::Connect) {
    if (!server_ && !dialling_) dial();
    if (stage_ != Stage::Connect) return;
    if (!server_ || dialling_) return update();
    stage_ = Stage::Pass;
    timer_.reset();
  }
  if (kind_ == Kind::Http && !opaque_) {
    take_requests();
  } else {
    if (first_line_ && first_line_->names_http(raw_)) {
      kind_ = Kind::Http;
      return refuse("its request was not passed on: its first line can be read in two ways");
    }
    to_server_ += raw_;
    raw_.clear();
  }
  if (stage_ != Stage::Pass) return;
  flush_server();
  if (stage_ != Stage::Pass) return;
  flush_client();
  // What TLS has decrypted already no event will tell of.
  while (stage_ == Stage::Pass && to_client_.empty() && server_->pending()) {
    if (!read_server()) return;
    flush_client();
  }
  if (stage_ != Stage::Pass) return;
  if (client_ended_ && raw_.empty() && to_server_.empty() && !told_server_) {
    told_server_ = true;
    server_->end_writing();
  }
  if (server_ended_ && to_client_.empty()) end_client();
  // After an answer that the server ended, a request could only be lost.
  if (told_client_ && (told_server_ || last_request_ || server_->tls())) return finish("allow", rule_);
  update();
}

void Relay::flush_server() {
  std::size_t done = 0;
  while (done < to_server_.size()) {
    std::size_t size = 0;
    const auto io = server_->write(std::string_view(to_server_).substr(done), size);
    done += size;
    if (size) {
      sent_ += size;
      if (!sandbox_.count(size, 0)) break;
    }
    if (io == ServerConnection::Io::Again) break;
    if (io != ServerConnection::Io::Done) {
      const std::string error = server_->error();
      to_server_.clear();
      // It may have answered before it closed.
      if (!read_server()) return;
      flush_client();
      return reset("allow", "the server broke it off: " + error);
    }
  }
  to_server_.erase(0, done);
}

void Relay::flush_client() {
  std::size_t done = 0;
  while (done < to_client_.size()) {
    const ssize_t put = put_client(std::string_view(to_client_).substr(done));
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put < 0) {
      to_client_.clear();
      return finish(stage_ == Stage::Pass ? "allow" : "", rule_);
    }
    done += static_cast<std::size_t>(put);
  }
  to_client_.erase(0, done);
  if (stage_ == Stage::Answer && to_client_.empty()) end_client();
}

void Relay::answer_dns() {
  while (raw_.size() >= 2 && queries_ < kMostQueries) {
    const std::size_t length =
        static_cast<std::size_t>(static_cast<std::uint8_t>(raw_[0])) << 8 | static_cast<std::uint8_t>(raw_[1]);
    if (raw_.size() < length + 2) return;
    const std::string query = raw_.substr(2, length);
    raw_.erase(0, length + 2);
    if (!parse_dns_query(query)) return reset("deny", "what came to the name server's port is no query");
    ++queries_;
    sandbox_.answer(query, [this, alive = std::weak_ptr<bool>(alive_)](const std::string& reply) {
      if (!alive.lock() || stage_ != Stage::Dns) return;
      --queries_;
      to_client_ += static_cast<char>(reply.size() >> 8);
      to_client_ += static_cast<char>(reply.size());
      to_client_ += reply;
      loop_.later([this, alive] {
        if (alive.lock()) pump();
      });
    });
  }
}

// What to wait for.
void Relay::update() {
  std::uint32_t client = 0, server = 0;
  if (!to_client_.empty() || (client_tls_ && client_tls_->wants_to_write())) client |= EPOLLOUT;
  if (!client_ended_ && (raw_.size() + to_server_.size() < kBuffer || stage_ == Stage::Answer)) client |= EPOLLIN;
  // With both its directions ended there is nothing to wait for, and the kernel would go on telling of that.
  if (client_ended_ && told_client_) client_watch_.reset();
  if (client_watch_) client_watch_->want(client);
  if (server_ended_ && told_server_) server_watch_.reset();
  // No event tells of what has been decrypted, or could be.
  if (client_tls_ && stage_ == Stage::Pass && raw_.empty() && to_server_.empty() && client_tls_->pending())
    loop_.later([this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.lock()) pump();
    });
  // While it connects the watch is its own.
  if (!server_watch_ || dialling_ || !server_) return;
  if (!to_server_.empty()) server |= EPOLLOUT;
  if (!server_ended_ && to_client_.size() < kBuffer) {
    const bool may_decide = stage_ != Stage::Sniff || decided_ || raw_.empty();
    if (may_decide) server |= EPOLLIN;
  }
  server_watch_->want(server);
}

}  // namespace dsec::egress
