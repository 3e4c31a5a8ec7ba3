#include "runners/egress/gateway/client_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "core/base/error.h"
#include "runners/egress/gateway/certificate_authority.h"
#include "runners/egress/gateway/tls_error.h"

namespace dsec::egress {
namespace {

constexpr std::size_t kRead = 16 << 10;

int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                    unsigned offered_size, void*) {
  static constexpr unsigned char kHttp[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  if (::SSL_select_next_proto(&found, size, kHttp, sizeof kHttp - 1, offered, offered_size) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

SSL_CTX* context() {
  static SSL_CTX* const shared = [] {
    SSL_CTX* made = ::SSL_CTX_new(::TLS_server_method());
    if (!made) throw failure("TLS: " + tls_error());
    ::SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION);
    // Sessions would outlive the policy that they began under.
    ::SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    ::SSL_CTX_set_num_tickets(made, 0);
    ::SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    ::SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    ::SSL_CTX_set_alpn_select_cb(made, choose_protocol, nullptr);
    return made;
  }();
  return shared;
}

}  // namespace

void ClientTls::FreeSsl::operator()(ssl_st* ssl) const { ::SSL_free(ssl); }

ClientTls::ClientTls(int socket, CertificateAuthority& authority, const std::string& host)
    : ssl_(::SSL_new(context())) {
  if (!ssl_ || ::SSL_use_certificate(ssl_.get(), authority.certificate_for(host)) != 1 ||
      ::SSL_use_PrivateKey(ssl_.get(), authority.host_key()) != 1)
    throw failure("TLS: " + tls_error());
  BIO* const in = ::BIO_new(::BIO_s_mem());
  BIO* const out = ::BIO_new_socket(socket, BIO_NOCLOSE);
  ::SSL_set_bio(ssl_.get(), in, out);
  if (!in || !out) throw failure("TLS: " + tls_error());
  ::BIO_set_mem_eof_return(in, -1);  // more may come
  ::SSL_set_accept_state(ssl_.get());
}

ClientTls::~ClientTls() = default;

void ClientTls::feed(std::string_view bytes) {
  ::BIO_write(::SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
}

ClientTls::Io ClientTls::from_ssl(int result) {
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      wants_to_write_ = false;
      return Io::Again;
    case SSL_ERROR_WANT_WRITE:
      wants_to_write_ = true;
      return Io::Again;
    case SSL_ERROR_ZERO_RETURN:
      return Io::End;
    default:
      error_ = tls_error();
      return Io::Failed;
  }
}

ClientTls::Io ClientTls::read(std::string& plain) {
  ::ERR_clear_error();
  char buffer[kRead];
  std::size_t got = 0;
  const int result = ::SSL_read_ex(ssl_.get(), buffer, sizeof buffer, &got);
  if (result != 1) return from_ssl(result);
  plain.append(buffer, got);
  return Io::Done;
}

ClientTls::Io ClientTls::write(std::string_view bytes, std::size_t& size) {
  ::ERR_clear_error();
  size = 0;
  const int result = ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &size);
  if (result != 1) return from_ssl(result);
  wants_to_write_ = false;
  return Io::Done;
}

void ClientTls::end_writing() {
  ::ERR_clear_error();
  if (::SSL_is_init_finished(ssl_.get())) ::SSL_shutdown(ssl_.get());
  ::ERR_clear_error();
}

bool ClientTls::pending() const {
  return ::SSL_pending(ssl_.get()) > 0 || ::BIO_ctrl_pending(::SSL_get_rbio(ssl_.get())) > 0;
}

}  // namespace dsec::egress
