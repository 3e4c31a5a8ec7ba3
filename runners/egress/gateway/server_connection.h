#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"

struct ssl_st;
struct ssl_ctx_st;

namespace dsec::egress {

/// The gateway's connection to a server: TCP, and TLS over it where a secret goes along. Never blocks.
class ServerConnection {
 public:
  enum class Io { Done, Again, End, Failed };

  /// Reads what this process trusts, while it still may: a later one that is not nobody's is not seen.
  static void read_trust();
  explicit ServerConnection(UniqueFd socket);
  ServerConnection(ServerConnection&&) noexcept;
  ~ServerConnection();

  /// Speaks TLS from here on, and only with who proves to be `host`, a name or an address. Throws Error.
  void begin_tls(const std::string& host);
  /// Done when nothing is (any longer) to be negotiated; Failed with error().
  Io handshake();
  /// `size` becomes what was read or written.
  Io read(char* buffer, std::size_t& size);
  Io write(std::string_view bytes, std::size_t& size);
  /// That nothing more will be written.
  void end_writing();

  int fd() const { return socket_.get(); }
  /// Bytes that read() would give though the socket has none.
  bool pending() const;
  bool tls() const { return ssl_ != nullptr; }
  /// Of the last Again: it waits for room to write, else for bytes to read.
  bool wants_to_write() const { return wants_to_write_; }
  const std::string& error() const { return error_; }

 private:
  Io from_ssl(int result);
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  UniqueFd socket_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
  bool ready_ = true, wants_to_write_ = false;
  std::string error_;
};

}  // namespace dsec::egress
