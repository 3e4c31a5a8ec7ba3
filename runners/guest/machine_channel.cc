#include "runners/guest/machine_channel.h"

#include <linux/eventpoll.h>

#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

// What the guest sends is never waited for, and what it does not take waits in its stream: it can delay its own
// commands, and nothing else of ours.

namespace dsec::guest {
namespace {

constexpr uint32_t kWindow = 256u << 10;
constexpr unsigned kWorthTelling = 4;  // what part of a window
// Of what the guest does not read: the windows of some streams, and questions. A guest that takes nothing is lost.
constexpr size_t kMostWaiting = 64u << 20;
// Of what the world sends to it: an answer to dsec would wait behind that.
constexpr size_t kEnoughWaiting = 256u << 10;
constexpr uint32_t kMostFromGuest = channel::kMaxConnections + channel::kMaxFlows;
constexpr size_t kChunk = 64u << 10;
constexpr uint32_t kLongestMessage = 16u << 10;

struct MachineChannel {
  Source source;
  Buffer in, out;
  Buffer held;  ///< what is to be said to a guest that is quiesced, once it is not
  GuestStream* streams;
  uint32_t last_number, count;
  uint32_t from_guest;  ///< streams that it has opened; not in `count`
  bool there, was_full, silent;
} machine;
char chunk[kChunk];

void update_events() { watch(machine.source, EPOLLIN | (machine.out.size ? EPOLLOUT : 0u)); }

void flush() {
  size_t done = 0;
  while (done < machine.out.size) {
    const long sent = send_some(machine.source.fd, machine.out.data + done, machine.out.size - done);
    if (sent == -EINTR) continue;
    if (sent == -EAGAIN) break;
    if (sent <= 0) {
      machine.out.clear();
      return lose_machine("the channel to its guest broke");
    }
    done += static_cast<size_t>(sent);
  }
  machine.out.consume(done);
  update_events();
}

void send_frame(channel::Type type, uint32_t stream, const void* a, size_t a_size, const void* b = nullptr,
                size_t b_size = 0) {
  if (!machine.there) return;
  const channel::ChannelHeader header = {static_cast<uint32_t>(a_size + b_size), type, 0, stream};
  Buffer& out = machine.silent ? machine.held : machine.out;
  const bool idle = !out.size && !machine.silent;
  out.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (a_size) out.append(static_cast<const char*>(a), a_size);
  if (b_size) out.append(static_cast<const char*>(b), b_size);
  if (out.size > kMostWaiting) return lose_machine("its guest does not read");
  if (idle) flush();
}

void pump(GuestStream& stream) {
  while (machine.there && stream.out.size && stream.credit && !stream.left) {
    size_t size = stream.out.size < channel::kMaxData ? stream.out.size : channel::kMaxData;
    if (size > stream.credit) size = stream.credit;
    send_frame(channel::Type::Data, stream.number, stream.out.data, size);
    stream.credit -= size;
    stream.out.consume(size);
  }
  if (stream.ends && !stream.end_told && !stream.out.size && !stream.left) {
    stream.end_told = true;
    send_frame(channel::Type::Eof, stream.number, nullptr, 0);
  }
}

GuestStream* find(uint32_t number) {
  GuestStream* stream = machine.streams;
  while (stream && stream->number != number) stream = stream->next;
  return stream;
}

GuestStream* add_stream(uint32_t number, GuestStream::Kind kind, uint64_t window) {
  GuestStream* const stream = make<GuestStream>();
  stream->number = number;
  stream->kind = kind;
  stream->window = window;
  stream->socket = {SourceKind::Relay, -1, 0, stream};
  stream->next = machine.streams;
  machine.streams = stream;
  return stream;
}

void forget(GuestStream& stream) {
  GuestStream** at = &machine.streams;
  while (*at != &stream) at = &(*at)->next;
  *at = stream.next;
  --(stream.goes_out() ? machine.from_guest : machine.count);
  stream.out.clear();
  stream.in.clear();
  stream.message.clear();
  destroy(&stream);
}

void on_closed(GuestStream& stream, wire::Reader& reader) {
  stream.error = reader.u32();
  const Text message = reader.str();
  stream.message.append(message.data, message.size < kLongestMessage ? message.size : kLongestMessage);
  stream.closed = true;
  // It is forgotten later: an event of its socket may be among those that are being handled.
  if (!stream.left) on_stream_closed(stream);
}

// False when the guest breaks the protocol.
bool on_frame(const channel::ChannelHeader& header, const char* data) {
  wire::Reader reader(data, header.length);
  if (header.stream == 0) {
    if (static_cast<unsigned>(header.type) < static_cast<unsigned>(channel::Type::Welcome)) return false;
    on_control_frame(header.type, data, header.length);
    return true;
  }
  if (header.type == channel::Type::Open) return accept_egress(header.stream, reader);
  GuestStream* const stream = find(header.stream);
  if (!stream || stream->closed) return false;
  switch (header.type) {
    case channel::Type::Data:
      if (stream->left) return true;
      if (stream->guest_ends) return false;
      on_stream_data(*stream, data, header.length);
      return true;
    case channel::Type::Credit: {
      const uint32_t more = reader.u32();
      stream->credit += more;
      if (!reader.ok() || stream->credit > channel::kMaxWindow) return false;
      pump(*stream);
      if (!stream->left) on_stream_room(*stream);
      return true;
    }
    case channel::Type::Eof:
      stream->guest_ends = true;
      if (!stream->left) on_stream_end(*stream);
      return true;
    case channel::Type::Closed:
      on_closed(*stream, reader);
      return reader.ok();
    default:
      return false;
  }
}

void read_frames() {
  size_t at = 0;
  while (machine.there) {
    channel::ChannelHeader header;
    const auto parsed = channel::parse_frame(machine.in.data + at, machine.in.size - at, header);
    if (parsed == channel::Parsed::More) break;
    if (parsed == channel::Parsed::Garbage || !on_frame(header, machine.in.data + at + sizeof header))
      return lose_machine("its guest broke the protocol of the channel");
    at += sizeof header + header.length;
  }
  if (machine.there) machine.in.consume(at);
}

}  // namespace

bool has_machine() { return machine.there; }
GuestStream* all_streams() { return machine.streams; }

void begin_machine(Client& client) {
  Failure failure = {};
  const bool alone = keeper.config.flags & wire::kStartConsole && client.fd_count == 0;
  if (keeper.machine_began || (client.fd_count != 1 && !alone)) {
    failure.set("take the channel of its machine", "", -EINVAL);
    return send_failure(client, failure);
  }
  keeper.machine_began = true;
  if (!alone) {
    machine.source = {SourceKind::Channel, client.fds[0], 0, nullptr};
    client.fd_count = 0;
    set_nonblocking(machine.source.fd);
    machine.there = true;
    update_events();
  }
  keeper.began_us = keeper.idle_since_us = monotonic_us();
  if (keeper.config.lifetime_ms) keeper.end_us = keeper.began_us + keeper.config.lifetime_ms * 1000;
  send(client, wire::Type::Done, nullptr, 0);
}

void lose_machine(const char* why) {
  if (!machine.there) return;
  machine.there = false;
  close_source(machine.source);
  // A guest that was asked to end closes it, too.
  end_with_guest(why);
}

void begin_silence() {
  send_frame(channel::Type::Quiesce, 0, nullptr, 0);
  machine.silent = true;
}

void end_silence() {
  if (!machine.there) return;
  machine.silent = false;
  const uint64_t now = wall_time_us();
  send_frame(channel::Type::Thaw, 0, &now, sizeof now);
  if (!machine.there || !machine.held.size) return;
  const bool idle = !machine.out.size;
  machine.out.append(machine.held.data, machine.held.size);
  machine.held.clear();
  if (idle) flush();
}

bool channel_is_full() {
  const bool full = machine.out.size + machine.held.size > kEnoughWaiting;
  machine.was_full |= full;
  return full;
}

bool too_many_guest_streams() { return machine.from_guest > kMostFromGuest; }

// Those that it has closed may still be on their way out, and each is told that it is one too many: a guest that has
// twice as many does not listen.
GuestStream* accept_guest_stream(uint32_t number, GuestStream::Kind kind, uint64_t window) {
  if (!(number & channel::kOpenedByGuest) || find(number) || machine.from_guest >= 2 * kMostFromGuest) return nullptr;
  GuestStream* const stream = add_stream(number, kind, window);
  stream->credit = window;
  ++machine.from_guest;
  return stream;
}

GuestStream* open_guest_stream(GuestStream::Kind kind, const char* wanted, size_t size) {
  if (!machine.there || machine.count >= channel::kMaxStreams) return nullptr;
  do machine.last_number = (machine.last_number + 1) & ~channel::kOpenedByGuest;
  while (!machine.last_number || find(machine.last_number));
  GuestStream* const stream = add_stream(machine.last_number, kind, kWindow);
  stream->credit = channel::kGuestWindow;
  ++machine.count;
  send_frame(channel::Type::Open, stream->number, &kWindow, sizeof kWindow, wanted, size);
  return stream;
}

void put(GuestStream& stream, const void* data, size_t size) {
  if (stream.left || stream.closed) return;
  stream.out.append(static_cast<const char*>(data), size);
  pump(stream);
}

void put_frame(GuestStream& stream, wire::Type type, const void* a, size_t a_size, const void* b, size_t b_size) {
  if (stream.left || stream.closed) return;
  const wire::FrameHeader header = {static_cast<uint32_t>(a_size + b_size), type, 0};
  stream.out.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (a_size) stream.out.append(static_cast<const char*>(a), a_size);
  if (b_size) stream.out.append(static_cast<const char*>(b), b_size);
  pump(stream);
}

void put_end(GuestStream& stream) {
  stream.ends = true;
  pump(stream);
}

void leave(GuestStream& stream, uint32_t error) {
  if (stream.left) return;
  stream.left = true;
  stream.out.clear();
  stream.in.clear();
  close_source(stream.socket);
  stream.command = nullptr;
  stream.client = nullptr;
  if (!stream.closed) {
    const struct {
      uint32_t error, size;
      char end;
    } __attribute__((packed)) fields = {error, 0, '\0'};
    send_frame(channel::Type::Closed, stream.number, &fields, sizeof fields);
  }
}

void take(GuestStream& stream, size_t size) {
  stream.owed += size;
  if (stream.owed < stream.window / kWorthTelling || stream.left || stream.closed) return;
  if (stream.command && has_backlog(*stream.command)) return;
  const uint32_t more = static_cast<uint32_t>(stream.owed);
  stream.owed = 0;
  send_frame(channel::Type::Credit, stream.number, &more, sizeof more);
}

void send_control(channel::Type type, const char* data, size_t size) { send_frame(type, 0, data, size); }

void on_machine_channel(uint32_t events) {
  if (events & EPOLLOUT) flush();
  // Not without end: others have to be served, too.
  for (int rounds = 4; rounds > 0 && machine.there; --rounds) {
    const long got = read_fd(machine.source.fd, chunk, sizeof chunk);
    if (got == -EINTR) continue;
    if (got == -EAGAIN) return;
    if (got <= 0) return lose_machine("its machine closed the channel");
    machine.in.append(chunk, static_cast<size_t>(got));
    read_frames();
  }
}

void resume_streams() {
  for (GuestStream* stream = machine.streams; stream; stream = stream->next) take(*stream, 0);
  if (machine.was_full && machine.out.size + machine.held.size <= kEnoughWaiting) {
    machine.was_full = false;
    for (GuestStream* stream = machine.streams; stream; stream = stream->next)
      if (stream->goes_out()) update_egress(*stream);
  }
  for (GuestStream *stream = machine.streams, *next = nullptr; stream; stream = next) {
    next = stream->next;
    if (stream->left && stream->closed) forget(*stream);
  }
}

bool power_off_machine() {
  if (!machine.there || machine.silent || keeper.pause.freezer != Pause::Freezer::Thawed) return false;
  send_frame(channel::Type::PowerOff, 0, nullptr, 0);
  return machine.there;
}

}  // namespace dsec::guest
