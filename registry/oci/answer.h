#pragma once

#include "core/base/error.h"
#include "core/http/client.h"

namespace dsec::registry {

/// http::answer_error with what the registry says in the body: {"errors": [{"code": …, "message": …}]}.
Error registry_error(const http::Request& request, const http::Answer& answer);
/// The codes and messages of such a body, in one line; empty when it is none.
std::string complaint_of(std::string_view body);

}  // namespace dsec::registry
