#include <linux/in.h>
#include <linux/in6.h>
#include <linux/uio.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/agent/egress.h"
#include "runners/guest/sys.h"

// A flow is a pair of addresses. All come to one socket, whichever they are for; answers are written as whole packets,
// since they come from addresses that no socket here is bound to. What does not fit is lost, as on any network.

namespace dsec::guest {
namespace {

constexpr size_t kLengthSize = sizeof(uint16_t);
constexpr uint64_t kSecond = 1'000'000, kIdle = 60 * kSecond, kIdleLookup = 10 * kSecond;
constexpr uint16_t kDnsPort = 53;
constexpr unsigned kInTurn = 32;
// Waits for the channel at most, beside one datagram.
constexpr size_t kMostWaiting = 64u << 10;
constexpr int kOriginal4 = 20, kOriginal6 = 74;  // IP_ORIGDSTADDR, IPV6_ORIGDSTADDR

struct Flow {
  Flow* next;
  uint32_t number;
  Endpoint from, to;
  uint32_t credit, consumed;
  uint64_t last_us;
  Buffer input;  ///< the beginning of a datagram
};

struct Control {
  size_t size;
  int level, type;
};
struct Message {
  void* name;
  int name_size;
  iovec* parts;
  size_t part_count;
  void* control;
  size_t control_size;
  unsigned flags;
};

bool same(const Endpoint& left, const Endpoint& right) {
  return left.port == right.port && memcmp(left.address, right.address, sizeof left.address) == 0;
}

bool is_mapped(const Endpoint& endpoint) {
  static constexpr char kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '\xff', '\xff'};
  return memcmp(endpoint.address, kMapped, sizeof kMapped) == 0;
}

Flow* flows() { return static_cast<Flow*>(agent.egress.flows); }

void append_frame(channel::Type type, uint32_t number, const void* data, size_t size) {
  const channel::ChannelHeader header = {static_cast<uint32_t>(size), type, 0, number};
  agent.egress.waiting.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (size) agent.egress.waiting.append(static_cast<const char*>(data), size);
}

void destroy_flow(Flow* flow) {
  Flow** at = reinterpret_cast<Flow**>(&agent.egress.flows);
  while (*at != flow) at = &(*at)->next;
  *at = flow->next;
  --agent.egress.flow_count;
  flow->input.clear();
  destroy(flow);
}

void end_flow(Flow* flow) {
  static constexpr char kNothing[9] = {};  // errno 0, an empty string
  // Behind what waits of it.
  append_frame(channel::Type::Closed, flow->number, kNothing, sizeof kNothing);
  destroy_flow(flow);
}

Flow* find_flow(const Endpoint& from, const Endpoint& to) {
  Flow* flow = flows();
  while (flow && !(same(flow->from, from) && same(flow->to, to))) flow = flow->next;
  return flow;
}

Flow* begin_flow(const Endpoint& from, const Endpoint& to) {
  if (agent.egress.flow_count == channel::kMaxFlows) {
    Flow* oldest = flows();
    for (Flow* flow = oldest; flow; flow = flow->next)
      if (flow->last_us < oldest->last_us) oldest = flow;
    end_flow(oldest);
  }
  Flow* const flow = make<Flow>();
  flow->number = next_outward_number();
  flow->from = from;
  flow->to = to;
  flow->credit = channel::kFlowWindow;
  flow->next = flows();
  agent.egress.flows = flow;
  ++agent.egress.flow_count;
  Buffer frame = {};
  append_open(frame, channel::Protocol::Udp, to);
  append_frame(channel::Type::Open, flow->number, frame.data, frame.size);
  frame.clear();
  return flow;
}

// With its length before it, in as many frames as that takes.
void pass_on(const Endpoint& from, const Endpoint& to, const char* bytes, size_t size) {
  Flow* flow = find_flow(from, to);
  if (!flow) flow = begin_flow(from, to);
  flow->last_us = monotonic_us();
  if (flow->credit < size) return;
  flow->credit -= static_cast<uint32_t>(size);
  for (size_t at = 0; at < size;) {
    const size_t part = size - at < channel::kMaxData ? size - at : channel::kMaxData;
    append_frame(channel::Type::Data, flow->number, bytes + at, part);
    at += part;
  }
}

// Whom a datagram was for.
bool original_destination(const char* control, size_t size, Endpoint& to) {
  for (size_t at = 0; at + sizeof(Control) <= size;) {
    Control head;
    memcpy(&head, control + at, sizeof head);
    const bool four = head.level == 0 && head.type == kOriginal4, six = head.level == 41 && head.type == kOriginal6;
    if (four || six) return endpoint_of(control + at + sizeof head, to);
    if (head.size < sizeof head) return false;
    at += (head.size + 7) & ~size_t{7};
  }
  return false;
}

// The sum of RFC 1071, not yet folded.
uint64_t add_words(uint64_t sum, const char* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i)
    sum += static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (i % 2 ? 0 : 8);
  return sum;
}

void put_number(char* to, size_t value) {
  to[0] = static_cast<char>(value >> 8);
  to[1] = static_cast<char>(value);
}

// To the sandbox, as if the other end had sent it. The kernel fills in the checksum of IPv4's own header.
void answer(const Flow& flow, const char* data, size_t size) {
  constexpr size_t kFour = 20, kSix = 40, kUdp = 8;
  constexpr unsigned kUdpNumber = 17, kHops = 64;
  static char packet[kSix + kUdp + channel::kMaxDatagram];
  const bool four = is_mapped(flow.from);
  const size_t head = four ? kFour : kSix, skipped = four ? 12 : 0, address = 16 - skipped;
  if (head + kUdp + size > 65535 || size > channel::kMaxDatagram) return;
  memset(packet, 0, head + kUdp);
  char* const addresses = packet + (four ? 12 : 8);
  memcpy(addresses, flow.to.address + skipped, address);
  memcpy(addresses + address, flow.from.address + skipped, address);
  packet[0] = four ? 0x45 : 0x60;
  if (four) {
    put_number(packet + 2, head + kUdp + size);
    put_number(packet + 6, 0x4000);  // not to be cut into pieces
    packet[8] = kHops, packet[9] = kUdpNumber;
  } else {
    put_number(packet + 4, kUdp + size);
    packet[6] = kUdpNumber, packet[7] = kHops;
  }
  char* const udp = packet + head;
  put_number(udp, flow.to.port);
  put_number(udp + 2, flow.from.port);
  put_number(udp + 4, kUdp + size);
  memcpy(udp + kUdp, data, size);
  uint64_t sum = add_words(kUdpNumber + kUdp + size, addresses, 2 * address);
  sum = add_words(sum, udp, kUdp + size);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  // Zero would say that there is none.
  put_number(udp + 6, sum == 0xffff ? 0xffff : ~sum & 0xffff);
  constexpr int kDontWait = 0x40, kNoSignal = 0x4000;
  sockaddr_in old = {};
  old.sin_family = kInternet;
  memcpy(&old.sin_addr, flow.from.address + 12, 4);
  sockaddr_in6 six = {};
  six.sin6_family = kInternet6;
  memcpy(&six.sin6_addr, flow.from.address, 16);
  if (four) {
    sys(__NR_sendto, agent.egress.raw4, packet, head + kUdp + size, kDontWait | kNoSignal, &old, sizeof old);
  } else {
    sys(__NR_sendto, agent.egress.raw6, packet, head + kUdp + size, kDontWait | kNoSignal, &six, sizeof six);
  }
}

void take_answers(Flow& flow, const char* data, size_t size) {
  if (flow.input.size + size > channel::kFlowWindow) give_up("more comes of a flow than there is room for");
  flow.input.append(data, size);
  size_t at = 0;
  while (flow.input.size - at >= kLengthSize) {
    uint16_t length = 0;
    memcpy(&length, flow.input.data + at, kLengthSize);
    if (flow.input.size - at - kLengthSize < length) break;
    answer(flow, flow.input.data + at + kLengthSize, length);
    at += kLengthSize + length;
  }
  flow.input.consume(at);
  flow.last_us = monotonic_us();
  flow.consumed += static_cast<uint32_t>(at);
  if (flow.consumed < channel::kFlowWindow / 4) return;
  append_frame(channel::Type::Credit, flow.number, &flow.consumed, sizeof flow.consumed);
  flow.consumed = 0;
}

}  // namespace

bool may_take_datagrams() {
  return agent.egress.datagrams.fd > 0 && agent.state == channel::AgentState::Running &&
         agent.egress.waiting.size < kMostWaiting;
}

void take_datagrams() {
  static char bytes[kLengthSize + 65536];
  for (unsigned i = 0; i < kInTurn && may_take_datagrams(); ++i) {
    alignas(8) char sender[128], control[256];
    iovec part = {bytes + kLengthSize, sizeof bytes - kLengthSize};
    Message message = {sender, sizeof sender, &part, 1, control, sizeof control, 0};
    const long got = sys(__NR_recvmsg, agent.egress.datagrams.fd, &message, 0x40 /* MSG_DONTWAIT */);
    if (got < 0) return;
    Endpoint from = {}, to = {};
    if (!endpoint_of(sender, from) || !original_destination(control, message.control_size, to)) continue;
    const auto length = static_cast<uint16_t>(got);
    memcpy(bytes, &length, kLengthSize);
    pass_on(from, to, bytes, static_cast<size_t>(got) + kLengthSize);
  }
}

void end_idle_flows() {
  const uint64_t now = monotonic_us();
  for (Flow *flow = flows(), *next = nullptr; flow; flow = next) {
    next = flow->next;
    const uint64_t idle = flow->to.port == kDnsPort ? kIdleLookup : kIdle;
    if (now - flow->last_us >= idle) end_flow(flow);
  }
}

void forget_flows() {
  while (flows()) destroy_flow(flows());
  agent.egress.waiting.clear();
}

bool take_flow_frame(const channel::ChannelHeader& header, const char* data) {
  Flow* flow = flows();
  while (flow && flow->number != header.stream) flow = flow->next;
  if (!flow) return false;
  wire::Reader reader(data, header.length);
  switch (header.type) {
    case channel::Type::Data:
      take_answers(*flow, data, header.length);
      return true;
    case channel::Type::Credit: {
      const uint32_t bytes = reader.u32();
      if (!reader.ok() || reader.left() || bytes > channel::kMaxWindow - flow->credit) give_up("credit makes no sense");
      flow->credit += bytes;
      return true;
    }
    case channel::Type::Closed:
      end_flow(flow);
      return true;
    case channel::Type::Eof:
      return true;
    default:
      return false;
  }
}

}  // namespace dsec::guest
