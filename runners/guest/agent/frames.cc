#include <linux/eventpoll.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/agent/egress.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr size_t kReadChunk = 64u << 10;
// A guest whose requests nobody's answers are read of has lost dsec.
constexpr size_t kMostControl = 8u << 20;
char chunk[kReadChunk];

void handle(const channel::ChannelHeader& header, const char* data) {
  const size_t size = header.length;
  if (header.stream == 0) {
    if (!handle_control(header.type, data, size)) give_up("a request makes no sense");
    return;
  }
  if (header.stream & channel::kOpenedByGuest && take_flow_frame(header, data)) return;
  wire::Reader reader(data, size);
  switch (header.type) {
    case channel::Type::Open:
      return open_stream(header.stream, reader);
    case channel::Type::Data:
      return take_data(header.stream, data, size);
    case channel::Type::Credit: {
      const uint32_t bytes = reader.u32();
      if (!reader.ok() || reader.left()) give_up("credit makes no sense");
      return take_credit(header.stream, bytes);
    }
    case channel::Type::Eof:
      return take_end(header.stream);
    case channel::Type::Closed:
      return abandon_stream(header.stream);
    default:
      give_up("a stream has a frame of another kind");
  }
}

void take_frames() {
  size_t at = 0;
  for (;;) {
    channel::ChannelHeader header;
    const auto parsed = channel::parse_frame(agent.received.data + at, agent.received.size - at, header);
    if (parsed == channel::Parsed::Garbage) give_up("what came is no frame");
    if (parsed == channel::Parsed::More) break;
    handle(header, agent.received.data + at + sizeof header);
    at += sizeof header + header.length;
  }
  if (at) agent.received.consume(at);
}

// What waits in `buffer` is written next.
bool take_all(Buffer& buffer) {
  if (!buffer.size) return false;
  const Buffer spare = agent.current;
  agent.current = buffer;
  buffer = spare;
  return true;
}

// Whether there is something to write now.
bool next_output() {
  agent.current.size = 0;
  agent.written = 0;
  if (take_all(agent.control)) return true;
  if (agent.state == channel::AgentState::Quiesced) return false;
  // Datagrams and streams take turns.
  agent.egress.turn = !agent.egress.turn;
  if (agent.egress.turn && take_all(agent.egress.waiting)) return true;
  return next_data() || take_all(agent.egress.waiting);
}

}  // namespace

void on_channel(uint32_t events) {
  if (events & EPOLLOUT) agent.writable = true;
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
  const long got = read_fd(agent.port.fd, chunk, sizeof chunk);
  if (got == -EAGAIN || got == -EINTR) {
    if (events & EPOLLHUP) lose_channel();
    return;
  }
  if (got <= 0) return lose_channel();
  agent.received.append(chunk, static_cast<size_t>(got));
  take_frames();
}

void pump() {
  while (agent.port.fd >= 0 && agent.writable) {
    if (agent.written == agent.current.size && !next_output()) return;
    const long put = write_fd(agent.port.fd, agent.current.data + agent.written, agent.current.size - agent.written);
    if (put == -EAGAIN || put == -EINTR) {
      agent.writable = false;
      return;
    }
    if (put <= 0) return lose_channel();
    agent.written += static_cast<size_t>(put);
  }
}

void send_control(channel::Type type, uint32_t stream, const void* data, size_t size) {
  const channel::ChannelHeader header = {static_cast<uint32_t>(size), type, 0, stream};
  if (agent.control.size > kMostControl) give_up("nobody reads the answers");
  agent.control.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (size) agent.control.append(static_cast<const char*>(data), size);
}

void send_failed(const Failure& failure) {
  Buffer text = {};
  const char* const object = failure.object ? failure.object : "";
  wire::Writer<Buffer>(text)
      .u32(static_cast<uint32_t>(failure.error))
      .str(failure.step, strlen(failure.step))
      .str(object, strlen(object));
  send_control(channel::Type::Failed, 0, text.data, text.size);
  text.clear();
}

void give_up(const char* why) {
  complain("go on, as on the channel", why, 0);
  end_machine();
}

}  // namespace dsec::guest
