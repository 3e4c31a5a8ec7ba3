#pragma once

#include <string_view>

namespace dsec {

/// Throws Error (Usage) with the rule unless `name` can name a host: labels of letters, digits and inner '-', at most
/// 63 bytes each, joined by '.', in all at most the 64 bytes that sethostname(2) takes. It stands in /etc/hosts and in
/// prompts, where a blank or a line break would say something else.
void check_hostname(std::string_view name);

}  // namespace dsec
