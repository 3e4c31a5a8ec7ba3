#pragma once

#include <string>

namespace dsec {

/// "SIGTERM", "term", "9", "RTMIN+3"; empty: SIGTERM. Throws Error (Usage).
int signal_number(const std::string& name);

}  // namespace dsec
