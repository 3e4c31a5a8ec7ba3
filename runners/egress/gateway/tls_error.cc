#include "runners/egress/gateway/tls_error.h"

#include <openssl/err.h>

namespace dsec::egress {

std::string tls_error() {
  const unsigned long code = ::ERR_get_error();
  ::ERR_clear_error();
  const char* reason = code ? ::ERR_reason_error_string(code) : nullptr;
  return reason ? reason : "the connection ended";
}

}  // namespace dsec::egress
