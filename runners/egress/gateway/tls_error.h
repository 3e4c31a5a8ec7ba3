#pragma once

#include <string>

namespace dsec::egress {

/// What OpenSSL says went wrong last; takes it away.
std::string tls_error();

}  // namespace dsec::egress
