#include "runners/egress/gateway/server_connection.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <limits>

#include "core/base/error.h"
#include "core/model/ip_address.h"
#include "runners/egress/gateway/tls_error.h"

namespace dsec::egress {
namespace {

SSL_CTX* context() {
  static SSL_CTX* const shared = [] {
    SSL_CTX* made = ::SSL_CTX_new(::TLS_client_method());
    if (!made) throw failure("TLS: " + tls_error());
    ::SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION);
    ::SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    // Servers close without a word of TLS; where a message ends HTTP says.
    ::SSL_CTX_set_options(made, SSL_OP_IGNORE_UNEXPECTED_EOF);
    // The buffer may have moved or grown until a write is tried again.
    ::SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    // Which SSL_CERT_FILE and SSL_CERT_DIR of who started the gateway may name.
    if (::SSL_CTX_set_default_verify_paths(made) != 1) throw failure("TLS: " + tls_error());
    return made;
  }();
  return shared;
}

}  // namespace

void ServerConnection::FreeSsl::operator()(ssl_st* ssl) const { ::SSL_free(ssl); }

void ServerConnection::read_trust() { context(); }

ServerConnection::ServerConnection(UniqueFd socket) : socket_(std::move(socket)) {}
ServerConnection::ServerConnection(ServerConnection&&) noexcept = default;
ServerConnection::~ServerConnection() = default;

void ServerConnection::begin_tls(const std::string& host) {
  ssl_.reset(::SSL_new(context()));
  if (!ssl_ || ::SSL_set_fd(ssl_.get(), socket_.get()) != 1) throw failure("TLS: " + tls_error());
  // An address has no place in the ClientHello.
  const bool named = !IpAddress::parse(host).has_value();
  if (named ? ::SSL_set1_host(ssl_.get(), host.c_str()) != 1 ||
                  // SSL_set_tlsext_host_name, whose macro has a cast that our warnings refuse.
                  ::SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                             const_cast<char*>(host.c_str())) != 1
            : ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl_.get()), host.c_str()) != 1)
    throw failure("TLS: " + tls_error());
  ::SSL_set_connect_state(ssl_.get());
  ready_ = false;
}

ServerConnection::Io ServerConnection::from_ssl(int result) {
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      wants_to_write_ = false;
      return Io::Again;
    case SSL_ERROR_WANT_WRITE:
      wants_to_write_ = true;
      return Io::Again;
    case SSL_ERROR_ZERO_RETURN:
      return Io::End;
    default: {
      const long verified = ::SSL_get_verify_result(ssl_.get());
      error_ = verified == X509_V_OK ? tls_error() : ::X509_verify_cert_error_string(verified);
      ::ERR_clear_error();
      return Io::Failed;
    }
  }
}

ServerConnection::Io ServerConnection::handshake() {
  if (ready_) return Io::Done;
  ::ERR_clear_error();
  if (const int result = ::SSL_do_handshake(ssl_.get()); result != 1) return from_ssl(result);
  ready_ = true;
  return Io::Done;
}

ServerConnection::Io ServerConnection::read(char* buffer, std::size_t& size) {
  if (ssl_) {
    ::ERR_clear_error();
    std::size_t got = 0;
    const int result = ::SSL_read_ex(ssl_.get(), buffer, size, &got);
    size = got;
    return result == 1 ? Io::Done : from_ssl(result);
  }
  const ssize_t got = ::recv(socket_.get(), buffer, size, 0);
  size = got > 0 ? static_cast<std::size_t>(got) : 0;
  if (got > 0) return Io::Done;
  if (got == 0) return Io::End;
  if (errno == EAGAIN || errno == EINTR) {
    wants_to_write_ = false;
    return Io::Again;
  }
  error_ = errno_text(errno);
  return Io::Failed;
}

ServerConnection::Io ServerConnection::write(std::string_view bytes, std::size_t& size) {
  if (ssl_) {
    ::ERR_clear_error();
    std::size_t put = 0;
    const int result = ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &put);
    size = put;
    return result == 1 ? Io::Done : from_ssl(result);
  }
  const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  size = put > 0 ? static_cast<std::size_t>(put) : 0;
  if (put >= 0) return Io::Done;
  if (errno == EAGAIN || errno == EINTR) {
    wants_to_write_ = true;
    return Io::Again;
  }
  error_ = errno_text(errno);
  return Io::Failed;
}

bool ServerConnection::pending() const { return ssl_ && ::SSL_pending(ssl_.get()) > 0; }

void ServerConnection::end_writing() {
  // Servers take the end of TLS for the end of the exchange, so a half-closed request over TLS stays open.
  if (!ssl_) ::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace dsec::egress
