#pragma once

#include <string>
#include <string_view>

#include "runners/egress/gateway/resolver.h"

namespace dsec::egress {

/// A whole IP packet that carries `data` over UDP, both checksums right. Both addresses are of one family; data that
/// does not fit into a packet is cut.
std::string udp_packet(const Endpoint& from, const Endpoint& to, std::string_view data);

}  // namespace dsec::egress
