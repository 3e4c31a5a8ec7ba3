#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"

namespace dsec::remote {

/// What clients may cost. Whoever exceeds one is answered with it, or cut off, and nobody else notices.
struct ServerLimits {
  std::size_t connections = 10'000;
  std::uint32_t header_bytes = 32 << 10;
  std::size_t body_bytes = 8 << 20;   ///< of a body that is held as a whole
  std::size_t held_bytes = 64 << 20;  ///< of all such bodies together
  std::chrono::milliseconds header_time{10'000}, idle_time{60'000};
  std::chrono::milliseconds stall_time{60'000};  ///< without 64 KiB of a body, or without taking an answer
  std::chrono::milliseconds keep_alive{15'000};  ///< a stream that says nothing says so this often
};

struct HttpHead {
  std::string method, target;
  std::map<std::string, std::string> headers;  ///< names in lower case; of several the last
  std::string upgrade;                         ///< the protocol that the client would rather speak; empty: none
  std::string id;    ///< of the request: the client's Dsec-Request-Id where that is one, else our own
  std::string peer;  ///< for the log
  /// Empty when there is none.
  std::string header(const std::string& name) const;
};

struct Answer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::string extra;  ///< whole header lines, each with its end
};

struct StreamForm {
  std::string protocol;  ///< to upgrade to; empty: none
  std::string type;      ///< of chunks
  std::string quiet;     ///< sent when there was nothing else for ServerLimits::keep_alive; empty: nothing
  /// The client may take what is sent as late as it likes; else within ServerLimits::stall_time.
  bool patient = false;
  /// Nothing of the request's body is needed any more: the room that it takes of ServerLimits::held_bytes is free.
  bool body_is_done = false;
};

/// A request that is refused before its body is read.
struct Refusal {
  Answer answer;
};

/// One request and what is said to it. Held by whoever works on it. Calls marked "any thread" are safe from all;
/// everything else is to be done in turn: within what in_turn() and the other calls of this class call back.
class Exchange {
 public:
  using Done = std::function<void()>;
  virtual ~Exchange() = default;

  virtual const HttpHead& head() const = 0;
  /// The whole body of a request that was admitted with Body::Whole.
  virtual const std::string& body() const = 0;

  /// Any thread. Dropped once the server has ended.
  virtual void in_turn(Done work) = 0;
  /// Any thread. Says everything; what comes after it, and after the client is gone, is dropped.
  virtual void answer(Answer answer) = 0;

  /// Begins a stream: as the rest of the connection when the client asked for this protocol, else as chunks.
  virtual void begin_stream(const StreamForm& form) = 0;
  /// Whether the client has the connection to itself, and can send more.
  virtual bool upgraded() const = 0;
  /// `sent` is called when it is on its way: who waits for it never has more than one piece in memory.
  virtual void send(std::string bytes, Done sent) = 0;
  /// Nothing more will be sent; of an upgraded connection the other direction may go on until forsake().
  virtual void end_stream() = 0;
  /// The next piece of the request's body (Body::Pieces), or of an upgraded connection; empty: the end.
  virtual void receive(std::function<void(std::string_view)> take) = 0;
  /// Ends the connection.
  virtual void forsake() = 0;
  /// One at a time, and not after the end of the exchange.
  virtual void after(std::chrono::milliseconds time, Done work) = 0;

  /// Called at most once, when the client is gone, too slow, or was forsaken.
  virtual void on_gone(Done work) = 0;
  /// Called at most once, when the server wants to end.
  virtual void on_drain(Done work) = 0;
};

/// What the server asks for every request.
class RequestHandler {
 public:
  enum class Body { Whole, Pieces };
  virtual ~RequestHandler() = default;
  /// By the head alone; must not wait. Throws Refusal.
  virtual Body admit(const HttpHead& head) = 0;
  /// Must not wait, and not throw.
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  /// Told of each at its end. `sent` counts bytes of answers and streams.
  virtual void finished(const HttpHead& head, int status, std::uint64_t received, std::uint64_t sent,
                        std::chrono::microseconds took) = 0;
  /// The answer to what is no request.
  virtual Answer refuse(int status, const std::string& why) = 0;
};

/// HTTP/1.1 over listening sockets. A few threads serve any number of connections.
class HttpServer {
 public:
  /// `listener` listens. The handler must outlive it.
  HttpServer(UniqueFd listener, RequestHandler& handler, const ServerLimits& limits);
  /// Ends its threads. Exchanges may not be used any more.
  ~HttpServer();

  /// Once, when the handler is ready.
  void start(unsigned threads);

  std::size_t connections() const;
  /// Takes no more connections, answers what was asked, and asks streams to end. What is left after `time` is cut; when
  /// somebody still works for it then, this is false.
  bool drain(std::chrono::milliseconds time);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace dsec::remote
