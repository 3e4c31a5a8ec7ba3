#include <sys/socket.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/remote/edge/gate.h"
#include "core/remote/edge/pumps.h"
#include "core/remote/frame.h"

namespace dsec::remote {
namespace {

constexpr std::size_t kPiece = 64 << 10;

class BytePump : public std::enable_shared_from_this<BytePump> {
 public:
  BytePump(std::shared_ptr<Exchange> exchange, UniqueFd socket, Readiness& readiness, Held held)
      : exchange_(std::move(exchange)),
        socket_(std::move(socket)),
        from_(std::in_place, readiness, socket_.get(), Ready::ToRead),
        to_(std::in_place, readiness, socket_.get(), Ready::ToWrite),
        held_(std::move(held)) {}
  Exchange& exchange() { return *exchange_; }

  void begin() {
    const auto self = shared_from_this();
    exchange_->on_gone([self] { self->drop(); });
    if (!socket_) return;
    if (exchange_->head().upgrade != kBytesProtocol)
      return exchange_->answer(answer_of(usage_error("a port is reached over a connection of its own")
                                             .hint("Connection: Upgrade, Upgrade: " + std::string(kBytesProtocol))));
    exchange_->begin_stream(
        {.protocol = kBytesProtocol, .type = "", .quiet = "", .patient = true, .body_is_done = true});
    forward();
    hear();
  }

 private:
  void forward() {
    if (!socket_) return;
    const auto self = shared_from_this();
    std::string piece(kPiece, '\0');
    const ssize_t got = ::recv(socket_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
      return from_->when_open(in_turn_of(self, [](BytePump& pump) { pump.forward(); }));
    if (got <= 0) {
      forwarded_ = true;
      exchange_->end_stream();
      return end_if_done();
    }
    piece.resize(static_cast<std::size_t>(got));
    exchange_->send(std::move(piece), [self] { self->forward(); });
  }

  void hear() {
    const auto self = shared_from_this();
    exchange_->receive([self](std::string_view piece) {
      if (!self->socket_) return;
      if (!piece.empty()) {
        self->piece_ = piece;
        return self->pass_on();
      }
      // The other direction may go on.
      ::shutdown(self->socket_.get(), SHUT_WR);
      self->heard_ = true;
      self->end_if_done();
    });
  }

  void pass_on() {
    while (socket_ && !piece_.empty()) {
      const ssize_t sent = ::send(socket_.get(), piece_.data(), piece_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN)
        return to_->when_open(in_turn_of(shared_from_this(), [](BytePump& pump) { pump.pass_on(); }));
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return exchange_->forsake();
      piece_.erase(0, static_cast<std::size_t>(sent));
    }
    if (socket_) hear();
  }

  void end_if_done() {
    if (!forwarded_ || !heard_) return;
    // What was sent last is on its way before the connection ends.
    const auto exchange = exchange_;
    exchange->after(std::chrono::milliseconds(0), [exchange] { exchange->forsake(); });
  }

  void drop() {
    from_.reset();
    to_.reset();
    socket_.reset();
    held_.reset();
  }

  const std::shared_ptr<Exchange> exchange_;
  UniqueFd socket_;
  std::optional<Gate> from_, to_;
  Held held_;
  std::string piece_;
  bool forwarded_ = false, heard_ = false;
};

}  // namespace

void pump_bytes(std::shared_ptr<Exchange> exchange, UniqueFd socket, Readiness& readiness, Held held) {
  const auto pump = std::make_shared<BytePump>(std::move(exchange), std::move(socket), readiness, std::move(held));
  pump->exchange().in_turn([pump] { pump->begin(); });
}

}  // namespace dsec::remote
