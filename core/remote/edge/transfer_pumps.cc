#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/remote/edge/gate.h"
#include "core/remote/edge/pumps.h"
#include "core/remote/frame.h"

namespace dsec::remote {
namespace {

constexpr std::size_t kPiece = 64 << 10;
// Of a body that nobody wants any more this much is read, so that the client comes to read why.
constexpr std::uint64_t kDiscarded = 64ull << 20;
// Up to here a failure is an answer of its own; later the client hears at least that the edge is there.
constexpr std::chrono::seconds kSilence{5};

class OutPump : public std::enable_shared_from_this<OutPump> {
 public:
  OutPump(std::shared_ptr<Exchange> exchange, Produces produces, UniqueFd from, Readiness& readiness)
      : exchange_(std::move(exchange)),
        produces_(produces),
        from_(std::move(from)),
        gate_(std::in_place, readiness, from_.get(), Ready::ToRead) {
    ::fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  }
  Exchange& exchange() { return *exchange_; }

  void begin() {
    exchange_->on_gone([self = shared_from_this()] { self->drop(); });
    exchange_->after(kSilence, [self = shared_from_this()] {
      if (self->from_) self->begin_stream();
    });
    forward();
  }
  // `work` has returned.
  void ended(std::optional<Error> error) {
    error_ = std::move(error);
    ended_ = true;
    conclude();
  }

 private:
  void forward() {
    if (!from_) return;
    const auto self = shared_from_this();
    std::string piece(kPiece, '\0');
    const ssize_t got = ::read(from_.get(), piece.data(), piece.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
      return gate_->when_open(in_turn_of(self, [](OutPump& pump) { pump.forward(); }));
    if (got <= 0) {
      read_all_ = true;
      return conclude();
    }
    piece.resize(static_cast<std::size_t>(got));
    begin_stream();
    exchange_->send(produces_ == Produces::Bytes ? frame(FrameKind::Data, std::string_view(piece)) : std::move(piece),
                    [self] { self->forward(); });
  }

  void conclude() {
    if (!ended_ || !read_all_ || !from_) return;
    if (error_ && !begun_) {
      exchange_->answer(answer_of(*error_));
    } else {
      begin_stream();
      exchange_->send(error_ ? frame(FrameKind::Failed, error_document(*error_)) : frame(FrameKind::End), nullptr);
      say_farewell(exchange_);
    }
    drop();
  }

  void begin_stream() {
    if (std::exchange(begun_, true)) return;
    exchange_->begin_stream({kFramesProtocol, kFramesType, frame(FrameKind::KeepAlive)});
    if (exchange_->upgraded()) hear();
  }

  // Only whether it is there.
  void hear() {
    exchange_->receive([self = shared_from_this()](std::string_view piece) {
      if (piece.empty()) return self->exchange_->forsake();
      self->hear();
    });
  }

  void drop() {
    gate_.reset();
    from_.reset();
  }

  const std::shared_ptr<Exchange> exchange_;
  const Produces produces_;
  UniqueFd from_;
  std::optional<Gate> gate_;
  std::optional<Error> error_;
  bool begun_ = false, ended_ = false, read_all_ = false;
};

class InPump : public std::enable_shared_from_this<InPump> {
 public:
  InPump(std::shared_ptr<Exchange> exchange, UniqueFd to, Readiness& readiness)
      : exchange_(std::move(exchange)),
        to_(std::move(to)),
        gate_(std::in_place, readiness, to_.get(), Ready::ToWrite) {}
  Exchange& exchange() { return *exchange_; }

  void begin() {
    exchange_->on_gone([self = shared_from_this()] { self->drop(); });
    hear();
  }
  void ended(std::optional<Error> error) {
    error_ = std::move(error);
    ended_ = true;
    drop();
    conclude();
    // Whoever waited for room waits no more.
    if (!heard_ && !piece_.empty()) pass_on();
  }

 private:
  void hear() {
    if (std::exchange(hearing_, true)) return;
    exchange_->receive([self = shared_from_this()](std::string_view piece) {
      self->hearing_ = false;
      if (piece.empty()) {
        self->heard_ = true;
        if (self->to_) ::shutdown(self->to_.get(), SHUT_WR);
        return self->conclude();
      }
      self->piece_ = piece;
      self->pass_on();
    });
  }

  void pass_on() {
    while (to_ && !piece_.empty()) {
      const ssize_t sent = ::send(to_.get(), piece_.data(), piece_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN)
        return gate_->when_open(in_turn_of(shared_from_this(), [](InPump& pump) { pump.pass_on(); }));
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) break;
      piece_.erase(0, static_cast<std::size_t>(sent));
    }
    discarded_ += piece_.size();
    piece_.clear();
    if (ended_ && discarded_ > kDiscarded) heard_ = true;
    if (!heard_) return hear();
    conclude();
  }

  void conclude() {
    if (!ended_ || !heard_) return;
    exchange_->answer(error_ ? answer_of(*error_) : Answer{.body = "{}", .extra = {}});
  }

  void drop() {
    gate_.reset();
    to_.reset();
  }

  const std::shared_ptr<Exchange> exchange_;
  UniqueFd to_;
  std::optional<Gate> gate_;
  std::string piece_;
  std::optional<Error> error_;
  std::uint64_t discarded_ = 0;
  bool heard_ = false, hearing_ = false, ended_ = false;
};

// Runs `work` with its end of the stream and tells the pump of its end.
template <typename Pump>
bool start(ThreadLimit& threads, const std::string& sandbox, const std::shared_ptr<Pump>& pump, UniqueFd end,
           std::function<void(int)> work) {
  return threads.take(sandbox, [pump, fd = std::make_shared<UniqueFd>(std::move(end)), work = std::move(work)] {
    std::optional<Error> failed;
    try {
      work(fd->get());
    } catch (const Error& error) {
      failed = error;
    } catch (const std::exception& error) {
      failed = Error(ErrorKind::Internal, error.what());
    }
    fd->reset();
    pump->exchange().in_turn([pump, failed = std::move(failed)] { pump->ended(failed); });
  });
}

}  // namespace

Answer answer_of(const Error& error) {
  const int status = error.kind() == ErrorKind::Usage ? 400 : error.kind() == ErrorKind::Failed ? 409 : 500;
  return {.status = status, .body = canonical_json(error_document(error)), .extra = {}};
}

Answer busy(const std::string& why) {
  Answer answer = answer_of(failure(why).hint("the same again, a little later"));
  answer.status = 503;
  answer.extra = "Retry-After: 1\r\n";
  return answer;
}

void pump_out(std::shared_ptr<Exchange> exchange, Produces produces, std::function<void(int)> work,
              Readiness& readiness, ThreadLimit& threads, const std::string& sandbox) {
  auto [from, to] = make_pipe();
  const auto pump = std::make_shared<OutPump>(std::move(exchange), produces, std::move(from), readiness);
  if (!start(threads, sandbox, pump, std::move(to), std::move(work)))
    return pump->exchange().answer(busy("the edge moves as many files as it may at once"));
  pump->exchange().in_turn([pump] { pump->begin(); });
}

void pump_in(std::shared_ptr<Exchange> exchange, std::function<void(int)> work, Readiness& readiness,
             ThreadLimit& threads, const std::string& sandbox) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw system_error("make a pair of sockets");
  UniqueFd to(ends[0]), from(ends[1]);
  // A socket that is closed while it has something that nobody read resets its peer, which is how a client that was cut
  // off differs here from one that has sent all: then the direction alone is shut down.
  if (::send(from.get(), "", 1, MSG_NOSIGNAL) != 1) throw system_error("prepare a pair of sockets");
  const auto pump = std::make_shared<InPump>(std::move(exchange), std::move(to), readiness);
  if (!start(threads, sandbox, pump, std::move(from), std::move(work)))
    return pump->exchange().answer(busy("the edge moves as many files as it may at once"));
  pump->exchange().in_turn([pump] { pump->begin(); });
}

}  // namespace dsec::remote
