#pragma once

#include "runners/guest/agent/agent.h"

/// What the sandbox sends anywhere but to itself: connections are streams that we open, and so are flows of datagrams.
namespace dsec::guest {

enum AddressFamily : uint16_t { kInternet = 2, kInternet6 = 10 };

/// What the helper gives, in this order: the listener, the socket of datagrams, and those that write whole packets.
constexpr unsigned kEgressSockets = 4;

struct Endpoint {
  char address[16];  ///< IPv4 is mapped
  uint16_t port;
};

/// Of a struct sockaddr_in or sockaddr_in6. False when it is neither.
bool endpoint_of(const char* address, Endpoint& endpoint);

uint32_t next_outward_number();
/// The fields of Open.
void append_open(Buffer& frame, channel::Protocol protocol, const Endpoint& to);

// datagrams.cc
/// Frames of a flow; false when the number is none's.
bool take_flow_frame(const channel::ChannelHeader& header, const char* data);

}  // namespace dsec::guest
