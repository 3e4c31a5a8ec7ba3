#include "core/remote/edge/connection.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <iostream>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace dsec::remote {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kPiece = 64 << 10;
// How long, and for how much, a client that was answered early may go on sending before the connection is cut, which
// could take the answer with it.
constexpr milliseconds kLingerTime{2'000};
constexpr std::size_t kLingerBytes = 4 << 20;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

const char* reason_of(int status) {
  switch (status) {
    case 101:
      return "Switching Protocols";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

// Of a request, for logs at both ends.
std::string request_id(const std::string& wished) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  if (!wished.empty() && wished.size() <= 64 && std::all_of(wished.begin(), wished.end(), plain)) return wished;
  static std::atomic<std::uint64_t> last = 0;
  static const std::uint64_t first = std::random_device{}();
  char text[32];
  std::snprintf(text, sizeof text, "%08llx-%llx", static_cast<unsigned long long>(first & 0xffffffff),
                static_cast<unsigned long long>(++last));
  return text;
}

std::string peer_of(int socket) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&storage), &size) == 0 && storage.ss_family != AF_UNIX) {
    char host[64] = "", port[8] = "";
    ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV);
    return std::string(host) + " " + port;
  }
  ucred credentials = {};
  size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return "unix";
  return "uid " + std::to_string(credentials.uid);
}

class Connection final : public ServedConnection, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = asio::generic::stream_protocol::socket;
  using Strand = asio::strand<asio::io_context::executor_type>;

  Connection(asio::io_context& io, ServerShared& shared, UniqueFd socket, int family, std::function<void()> closed)
      : shared_(shared),
        strand_(asio::make_strand(io)),
        socket_(strand_),
        read_deadline_(strand_),
        write_deadline_(strand_),
        quiet_timer_(strand_),
        after_timer_(strand_),
        buffer_(shared.limits.header_bytes + kPiece),
        closed_(std::move(closed)) {
    head_.peer = peer_of(socket.get());
    socket_.assign(asio::generic::stream_protocol(family, 0), socket.release());
  }
  ~Connection() override {
    release_body();
    closed_();
  }

  void begin() override {
    asio::dispatch(strand_, [self = shared_from_this()] { self->read_head(); });
  }
  void drain() override {
    asio::dispatch(strand_, [self = shared_from_this()] {
      if (self->state_ == State::Idle) return self->close();
      if (self->on_drain_) std::exchange(self->on_drain_, nullptr)();
    });
  }
  void cut() override {
    asio::dispatch(strand_, [self = shared_from_this()] { self->lose(); });
  }

  const HttpHead& head() const override { return head_; }
  const std::string& body() const override { return body_; }

  void in_turn(Done work) override { asio::dispatch(strand_, guarded(std::move(work))); }

  void answer(Answer answer) override {
    asio::dispatch(strand_, [self = shared_from_this(), answer = std::move(answer)]() mutable {
      if (self->state_ == State::Handling) self->say(std::move(answer));
    });
  }

  void begin_stream(const StreamForm& form) override {
    if (state_ != State::Handling) return;
    state_ = State::Streaming;
    upgraded_ = !form.protocol.empty() && head_.upgrade == form.protocol;
    patient_ = form.patient;
    if (form.body_is_done) release_body();
    status_ = upgraded_ ? 101 : 200;
    quiet_ = chunk(form.quiet);
    std::string text =
        "HTTP/1.1 " + std::to_string(status_) + " " + reason_of(status_) + "\r\nDsec-Request-Id: " + head_.id + "\r\n";
    text += upgraded_
                ? "Connection: Upgrade\r\nUpgrade: " + form.protocol + "\r\n"
                : "Content-Type: " + form.type +
                      "\r\nTransfer-Encoding: chunked\r\nConnection: " + (stays() ? "keep-alive" : "close") + "\r\n";
    push(text + "\r\n", nullptr);
    if (!quiet_.empty()) be_heard();
  }
  bool upgraded() const override { return upgraded_; }

  void send(std::string bytes, Done sent) override {
    if (state_ != State::Streaming || ended_) return;
    push(chunk(bytes), std::move(sent));
  }
  void end_stream() override {
    if (state_ != State::Streaming || ended_) return;
    ended_ = true;
    quiet_timer_.cancel();
    push(upgraded_ ? "" : "0\r\n\r\n", [this] {
      error_code ignored;
      if (upgraded_)
        socket_.shutdown(Socket::shutdown_send, ignored);
      else
        conclude();
    });
  }

  void receive(std::function<void(std::string_view)> take) override {
    if (state_ == State::Closed) return;
    take_ = std::move(take);
    if (upgraded_) return receive_raw();
    if (parser_->is_done()) return asio::post(strand_, [self = shared_from_this()] { self->give({}); });
    arm(read_deadline_, shared_.limits.stall_time);
    read_piece([this](std::string_view piece) { give(piece); });
  }

  void forsake() override { lose(); }

  void after(milliseconds time, Done work) override {
    after_timer_.expires_after(time);
    after_timer_.async_wait([self = shared_from_this(), turn = turn_, work = std::move(work)](error_code error) {
      if (!error && turn == self->turn_ && self->state_ != State::Closed) work();
    });
  }

  void on_gone(Done work) override {
    if (state_ == State::Closed) return work();
    on_gone_ = std::move(work);
    // Whoever has the connection to itself is heard.
    if (head_.upgrade.empty() && parser_->is_done()) watch_for_end();
  }
  void on_drain(Done work) override {
    if (shared_.draining) return asio::post(strand_, guarded(std::move(work)));
    on_drain_ = std::move(work);
  }

 private:
  enum class State { Idle, Reading, Handling, Streaming, Answering, Lingering, Closed };
  using Parser = http::request_parser<http::buffer_body>;

  Done guarded(Done work) {
    return [self = shared_from_this(), work = std::move(work)] { work(); };
  }

  // --- reading requests

  void read_head() {
    if (shared_.draining) return close();
    state_ = State::Idle;
    ++turn_;
    release_body();
    upgraded_ = ended_ = patient_ = false;
    status_ = 0;
    received_ = sent_ = 0;
    on_gone_ = on_drain_ = nullptr;
    take_ = nullptr;
    const std::string peer = head_.peer;
    head_ = {};
    head_.peer = peer;
    parser_.emplace();
    parser_->header_limit(shared_.limits.header_bytes);
    parser_->body_limit(boost::none);
    arm(read_deadline_, first_ ? shared_.limits.header_time : shared_.limits.idle_time);
    first_ = false;
    http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      self->read_deadline_.cancel();
      self->take_head(error);
    });
  }

  void take_head(error_code error) {
    if (state_ == State::Closed) return;
    began_ = steady_clock::now();
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return say(shared_.handler.refuse(
          431, "the headers are larger than " + std::to_string(shared_.limits.header_bytes) + " bytes"));
    if (error && error.category() == http::make_error_code(http::error::bad_version).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return say(shared_.handler.refuse(400, "this is no HTTP request: " + error.message()));
    if (error) return close();
    state_ = State::Reading;
    const auto& message = parser_->get();
    head_.method = std::string(message.method_string());
    head_.target = std::string(message.target());
    for (const auto& field : message)
      head_.headers[lowered({field.name_string().data(), field.name_string().size()})] = std::string(field.value());
    if (parser_->upgrade()) head_.upgrade = head_.header("upgrade");
    head_.id = request_id(head_.header("dsec-request-id"));
    RequestHandler::Body form;
    try {
      form = shared_.handler.admit(head_);
    } catch (Refusal& refusal) {
      return say(std::move(refusal.answer));
    }
    if (lowered(head_.header("expect")) == "100-continue" && !parser_->is_done())
      push("HTTP/1.1 100 Continue\r\n\r\n", nullptr);
    if (form == RequestHandler::Body::Pieces) return handle();
    if (const auto size = parser_->content_length(); size && *size > shared_.limits.body_bytes) return too_large();
    read_whole();
  }

  void read_whole() {
    if (parser_->is_done()) {
      piece_.reset();
      return handle();
    }
    arm(read_deadline_, shared_.limits.stall_time);
    read_piece([this](std::string_view piece) {
      if (body_.size() + piece.size() > shared_.limits.body_bytes) return too_large();
      if (shared_.held.fetch_add(piece.size()) + piece.size() > shared_.limits.held_bytes) {
        shared_.held -= piece.size();
        return say(shared_.handler.refuse(503, "too many large requests are here at once"));
      }
      body_ += piece;
      read_whole();
    });
  }

  void too_large() {
    say(shared_.handler.refuse(413, "the body is larger than " + std::to_string(shared_.limits.body_bytes) + " bytes"));
  }

  void release_body() {
    shared_.held -= body_.size();
    body_ = {};
  }

  // Up to kPiece bytes of the body.
  template <typename Take>
  void read_piece(Take take) {
    if (!piece_) piece_ = std::make_unique<char[]>(kPiece);
    parser_->get().body().data = piece_.get();
    parser_->get().body().size = kPiece;
    parser_->get().body().more = true;
    http::async_read(socket_, buffer_, *parser_,
                     [self = shared_from_this(), take = std::move(take)](error_code error, std::size_t) {
                       self->read_deadline_.cancel();
                       if (self->state_ == State::Closed) return;
                       if (error == http::error::need_buffer) error = {};
                       if (error) return self->lose();
                       const std::size_t size = kPiece - self->parser_->get().body().size;
                       self->received_ += size;
                       if (size == 0 && !self->parser_->is_done()) return self->lose();
                       take(std::string_view(self->piece_.get(), size));
                     });
  }

  void handle() {
    state_ = State::Handling;
    shared_.handler.handle(shared_from_this());
  }

  // --- what comes within streams

  void give(std::string_view piece) {
    if (state_ == State::Closed || !take_) return;
    std::exchange(take_, nullptr)(piece);
  }

  void receive_raw() {
    if (buffer_.size() > 0)
      return asio::post(strand_, [self = shared_from_this()] {
        const auto data = self->buffer_.data();
        const std::string piece(static_cast<const char*>(data.data()), data.size());
        self->buffer_.consume(piece.size());
        self->received_ += piece.size();
        self->give(piece);
      });
    // Without a buffer of its own, which thousands that say nothing would hold.
    socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
      if (self->state_ == State::Closed) return;
      char piece[kPiece];
      const ssize_t got = error ? -1 : ::recv(self->socket_.native_handle(), piece, sizeof piece, MSG_DONTWAIT);
      if (!error && got < 0 && (errno == EAGAIN || errno == EINTR)) return self->receive_raw();
      if (got < 0) return self->lose();
      self->received_ += static_cast<std::size_t>(got);
      self->give({piece, static_cast<std::size_t>(got)});
    });
  }

  // A client that only listens shows that it is gone by ending the connection.
  void watch_for_end() {
    socket_.async_wait(Socket::wait_read, [self = shared_from_this(), turn = turn_](error_code error) {
      if (error || turn != self->turn_ || self->state_ == State::Closed) return;
      char byte;
      const ssize_t got = ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) self->lose();
    });
  }

  // --- writing

  bool stays() const { return parser_ && parser_->is_done() && parser_->keep_alive() && !shared_.draining; }

  std::string chunk(const std::string& bytes) const {
    if (upgraded_ || bytes.empty()) return bytes;
    char size[24];
    const int length = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    return std::string(size, static_cast<std::size_t>(length)) + bytes + "\r\n";
  }

  void say(Answer answer) {
    if (state_ == State::Closed) return;
    state_ = State::Answering;
    status_ = answer.status;
    keeps_ = stays();
    std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " " + reason_of(answer.status) +
                       "\r\nDsec-Request-Id: " + head_.id + "\r\nContent-Type: " + answer.type +
                       "\r\nContent-Length: " + std::to_string(answer.body.size()) +
                       "\r\nConnection: " + (keeps_ ? "keep-alive" : "close") + "\r\n" + answer.extra + "\r\n";
    // Whoever asked for a head would take a body for the next answer.
    push(head_.method == "HEAD" ? std::move(text) : std::move(text) + answer.body, [this] { conclude(); });
  }

  void push(std::string bytes, Done sent) {
    out_.push_back({std::move(bytes), std::move(sent)});
    if (!writing_) write_next();
  }

  void write_next() {
    writing_ = true;
    if (!patient_) arm(write_deadline_, shared_.limits.stall_time);
    asio::async_write(socket_, asio::buffer(out_.front().bytes),
                      [self = shared_from_this()](error_code error, std::size_t size) {
                        self->write_deadline_.cancel();
                        self->writing_ = false;
                        if (self->state_ == State::Closed) return;
                        if (error) return self->lose();
                        self->sent_ += size;
                        const Done sent = std::move(self->out_.front().sent);
                        self->out_.pop_front();
                        if (sent) sent();
                        if (!self->writing_ && !self->out_.empty() && self->state_ != State::Closed) self->write_next();
                      });
  }

  // Says `quiet` when nothing else was said for long.
  void be_heard() {
    quiet_timer_.expires_after(shared_.limits.keep_alive);
    quiet_timer_.async_wait([self = shared_from_this(), turn = turn_, before = sent_](error_code error) {
      if (error || turn != self->turn_ || self->state_ != State::Streaming || self->ended_) return;
      if (self->out_.empty() && self->sent_ == before) self->push(self->quiet_, nullptr);
      self->be_heard();
    });
  }

  // --- ends

  void arm(asio::steady_timer& timer, milliseconds time) {
    timer.expires_after(time);
    timer.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->lose();
    });
  }

  // Everything is said.
  void conclude() {
    note_end();
    on_gone_ = on_drain_ = nullptr;
    after_timer_.cancel();
    if (state_ == State::Streaming ? stays() : keeps_) return read_head();
    state_ = State::Lingering;
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    arm(read_deadline_, kLingerTime);
    linger(kLingerBytes);
  }

  void linger(std::size_t left) {
    if (!piece_) piece_ = std::make_unique<char[]>(kPiece);
    socket_.async_read_some(asio::buffer(piece_.get(), kPiece),
                            [self = shared_from_this(), left](error_code error, std::size_t size) {
                              if (error || size >= left) return self->close();
                              self->linger(left - size);
                            });
  }

  // The client is gone, or nothing more is to be said to it.
  void lose() {
    if (state_ == State::Closed) return;
    note_end();
    const Done gone = std::exchange(on_gone_, nullptr);
    close();
    if (gone) gone();
  }

  void close() {
    if (state_ == State::Closed) return;
    state_ = State::Closed;
    error_code ignored;
    socket_.close(ignored);
    read_deadline_.cancel();
    write_deadline_.cancel();
    quiet_timer_.cancel();
    after_timer_.cancel();
    on_drain_ = nullptr;
    // What is being written is the socket's until its handler has come.
    if (out_.size() > 1) out_.erase(out_.begin() + 1, out_.end());
    if (!out_.empty()) out_.front().sent = nullptr;
    // It may be what is being called.
    asio::post(strand_, [self = shared_from_this()] { self->take_ = nullptr; });
  }

  void note_end() {
    if (state_ == State::Idle || state_ == State::Lingering || state_ == State::Closed || head_.method.empty()) return;
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - began_);
    shared_.handler.finished(head_, status_, received_, sent_, took);
    head_.method.clear();
  }

  struct Piece {
    std::string bytes;
    Done sent;
  };

  ServerShared& shared_;
  Strand strand_;
  Socket socket_;
  asio::steady_timer read_deadline_, write_deadline_, quiet_timer_, after_timer_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::unique_ptr<char[]> piece_;
  const std::function<void()> closed_;
  State state_ = State::Idle;
  HttpHead head_;
  std::string body_;
  bool first_ = true, keeps_ = false, upgraded_ = false, ended_ = false, patient_ = false, writing_ = false;
  int status_ = 0;
  std::uint64_t turn_ = 0, received_ = 0, sent_ = 0;
  steady_clock::time_point began_;
  std::deque<Piece> out_;
  std::string quiet_;
  std::function<void(std::string_view)> take_;
  Done on_gone_, on_drain_;
};

}  // namespace

struct EventLoop::Parts {
  void run() {
    for (;;) {
      try {
        io.run();
        return;
      } catch (const std::exception& error) {
        // One request went wrong; its connection is dropped with what held it, and the others go on.
        std::cerr << "dsec edge: mistake in a request: " << error.what() << std::endl;
      }
    }
  }

  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::vector<std::thread> runners;
};

EventLoop::EventLoop() : parts_(std::make_unique<Parts>()) {}

EventLoop::~EventLoop() { stop(); }

void EventLoop::start(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) parts_->runners.emplace_back([this] { parts_->run(); });
}

std::shared_ptr<ServedConnection> EventLoop::serve(ServerShared& shared, UniqueFd socket, int family,
                                                   std::function<void()> closed) {
  return std::make_shared<Connection>(parts_->io, shared, std::move(socket), family, std::move(closed));
}

void EventLoop::stop() {
  parts_->io.stop();
  for (std::thread& runner : parts_->runners) runner.join();
  parts_->runners.clear();
}

}  // namespace dsec::remote
