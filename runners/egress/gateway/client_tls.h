#pragma once

#include <memory>
#include <string>
#include <string_view>

struct ssl_st;

namespace dsec::egress {

class CertificateAuthority;

/// The gateway's end of a sandbox's TLS, where that is intercepted: it answers as the host that the sandbox wants,
/// with a certificate of the sandbox's own authority, and speaks HTTP/1.1. Never blocks.
class ClientTls {
 public:
  enum class Io { Done, Again, End, Failed };

  /// `socket` must outlive it; what comes from it goes through feed(). Throws Error.
  ClientTls(int socket, CertificateAuthority& authority, const std::string& host);
  ~ClientTls();

  void feed(std::string_view bytes);
  /// Appends what has been fed to `plain`; Again: nothing more for now. The handshake goes on by itself.
  Io read(std::string& plain);
  /// `size` becomes what was written.
  Io write(std::string_view bytes, std::size_t& size);
  /// That nothing more will be written.
  void end_writing();

  /// It waits for room to write.
  bool wants_to_write() const { return wants_to_write_; }
  /// Bytes that have been fed and not been read.
  bool pending() const;
  const std::string& error() const { return error_; }

 private:
  Io from_ssl(int result);
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
  bool wants_to_write_ = false;
  std::string error_;
};

}  // namespace dsec::egress
