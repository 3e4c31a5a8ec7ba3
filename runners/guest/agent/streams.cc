#include <asm/signal.h>
#include <linux/eventpoll.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

// Each stream has a socket, whose other end serves it: the keeper, a process of ours, or a program of the sandbox. Data
// is read of it only when dsec has room for it and the channel has nothing else to carry, so what a program floods
// waits in that program.

namespace dsec::guest {
namespace {

// Together with its header one write to the port, which takes 32 KiB at a time.
constexpr size_t kMostData = channel::kMaxData - sizeof(channel::ChannelHeader);
constexpr uint32_t kCreditStep = channel::kGuestWindow / 4;
constexpr size_t kMostMessage = 4096;

Stream* find_stream(uint32_t number) {
  Stream* stream = agent.streams;
  while (stream && stream->number != number) stream = stream->next;
  return stream;
}

void close_socket(Stream& stream) {
  if (stream.socket.fd < 0) return;
  watch(stream.socket, 0, nullptr);
  close_fd(stream.socket.fd);
  stream.socket.fd = -1;
}

void send_closed(uint32_t number, long result, const char* message, size_t size) {
  Buffer text = {};
  wire::Writer<Buffer>(text).u32(static_cast<uint32_t>(result < 0 ? -result : 0)).str(message, size);
  send_control(channel::Type::Closed, number, text.data, text.size);
  text.clear();
}

// What its process has said of its failure.
void tell_end(Stream& stream) {
  char message[kMostMessage];
  long size = 0;
  if (stream.errors >= 0) {
    const long got = read_fd(stream.errors, message, sizeof message);
    size = got > 0 ? got : 0;
    close_fd(stream.errors);
    stream.errors = -1;
  }
  static constexpr char kKilled[] = "the process that serves the stream has ended without a word";
  if (stream.status == 0 || stream.abandoned) return send_closed(stream.number, 0, "", 0);
  if (size == 0) return send_closed(stream.number, -EIO, kKilled, sizeof kKilled - 1);
  send_closed(stream.number, 0, message, static_cast<size_t>(size));
}

// It goes with the next sweep.
void finish(Stream& stream) {
  if (stream.goes_out && stream.socket.fd >= 0) --agent.egress.connections;
  close_socket(stream);
  stream.output_ended = stream.input_closed = true;
  stream.input.clear();
}

void update_events(Stream& stream) {
  uint32_t events = 0;
  if (agent.state == channel::AgentState::Quiesced) return watch(stream.socket, 0, nullptr);
  if (stream.unheard) return watch(stream.socket, EPOLLIN, &stream);
  if (stream.connecting || stream.input.size) events |= EPOLLOUT;
  if (!stream.connecting && !stream.readable && !stream.output_ended && stream.credit) events |= EPOLLIN;
  watch(stream.socket, events, &stream);
}

// Who it is for hears that it was reset, and nothing more.
void break_off(Stream& stream, long error) {
  static constexpr char kMessage[] = "the sandbox broke it off";
  send_closed(stream.number, error, kMessage, sizeof kMessage - 1);
  finish(stream);
  stream.number = 0;
}

void abandon(Stream& stream) {
  // That dsec gives a connection up means that its other end did.
  if (stream.goes_out && stream.socket.fd >= 0) end_by_reset(stream.socket.fd);
  finish(stream);
  stream.abandoned = true;
  if (stream.child) sys(__NR_kill, stream.child, SIGKILL);
}

void drop_output(Stream& stream) {
  char bytes[4096];
  const long got = read_fd(stream.socket.fd, bytes, sizeof bytes);
  if (got != -EAGAIN && got != -EINTR && got <= 0) finish(stream);
}

void give_credit(Stream& stream, size_t bytes) {
  stream.consumed += static_cast<uint32_t>(bytes);
  const uint32_t step = stream.goes_out ? channel::kConnectionWindow / 4 : kCreditStep;
  if (stream.consumed < step || stream.input_ended) return;
  send_control(channel::Type::Credit, stream.number, &stream.consumed, sizeof stream.consumed);
  stream.room += stream.consumed;
  stream.consumed = 0;
}

void write_input(Stream& stream) {
  constexpr int kDontWait = 0x40, kNoSignal = 0x4000;  // MSG_*
  while (stream.input.size && !stream.input_closed) {
    const long put =
        sys(__NR_sendto, stream.socket.fd, stream.input.data, stream.input.size, kDontWait | kNoSignal, nullptr, 0);
    if (put == -EAGAIN || put == -EINTR) break;
    if (put < 0 && stream.goes_out) return break_off(stream, put);
    if (put <= 0) {
      // It takes nothing more; what it still says is read.
      give_credit(stream, stream.input.size);
      stream.input.clear();
      stream.input_closed = true;
      break;
    }
    stream.input.consume(static_cast<size_t>(put));
    give_credit(stream, static_cast<size_t>(put));
  }
  if (!stream.input.size && stream.input_ended && !stream.input_closed) {
    stream.input_closed = true;
    sys(__NR_shutdown, stream.socket.fd, 1 /* SHUT_WR */);
  }
}

void end_output(Stream& stream) {
  stream.output_ended = true;
  stream.readable = false;
  // A keeper that hangs up has nothing more to hear either.
  if (stream.service == channel::Service::Keeper) stream.input_closed = true;
  send_control(channel::Type::Eof, stream.number, nullptr, 0);
}

// A piece of what it has said becomes the next frame.
bool take_piece(Stream& stream) {
  const size_t most = stream.credit < kMostData ? stream.credit : kMostData;
  agent.current.reserve(sizeof(channel::ChannelHeader) + most);
  char* const data = agent.current.data + sizeof(channel::ChannelHeader);
  const long got = read_fd(stream.socket.fd, data, most);
  if (got == -EAGAIN || got == -EINTR) {
    stream.readable = false;
    return false;
  }
  if (got < 0 && stream.goes_out) {
    break_off(stream, got);
    return false;
  }
  if (got <= 0) {
    end_output(stream);
    return false;
  }
  const channel::ChannelHeader header = {static_cast<uint32_t>(got), channel::Type::Data, 0, stream.number};
  memcpy(agent.current.data, &header, sizeof header);
  agent.current.size = sizeof header + static_cast<size_t>(got);
  stream.credit -= static_cast<uint32_t>(got);
  return true;
}

}  // namespace

void watch(Watched& watched, uint32_t events, void* owner) {
  if (watched.fd < 0 || watched.events == events) return;
  epoll_event event = {events, reinterpret_cast<uint64_t>(owner)};
  // One of which nothing is wanted would still be reported when its other end is gone.
  const int what = !events ? EPOLL_CTL_DEL : watched.events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  sys(__NR_epoll_ctl, agent.epoll, what, watched.fd, &event);
  watched.events = events;
}

void open_stream(uint32_t number, wire::Reader& reader) {
  if (find_stream(number)) give_up("a stream is opened twice");
  if (number & channel::kOpenedByGuest) give_up("a stream is opened on a number of ours");
  if (agent.stream_count - agent.egress.streams >= channel::kMaxStreams) {
    static constexpr char kMessage[] = "there are too many streams";
    return send_closed(number, -EMFILE, kMessage, sizeof kMessage - 1);
  }
  const uint32_t window = reader.u32();
  const auto service = static_cast<channel::Service>(reader.u16());
  if (!reader.ok() || window == 0 || window > channel::kMaxWindow) give_up("the wish for a stream makes no sense");
  Stream* const stream = make<Stream>();
  stream->number = number;
  stream->service = service;
  stream->socket.fd = stream->errors = -1;
  stream->credit = window;
  stream->room = channel::kGuestWindow;
  const char* what = "open a stream";
  const long done = start_service(*stream, reader, what);
  if (done < 0) {
    send_closed(number, done, what, strlen(what));
    if (stream->errors >= 0) close_fd(stream->errors);
    destroy(stream);
    return;
  }
  stream->next = agent.streams;
  agent.streams = stream;
  ++agent.stream_count;
  update_events(*stream);
}

void add_connection(uint32_t number, int socket) {
  Stream* const stream = make<Stream>();
  stream->number = number;
  stream->service = channel::Service::Egress;
  stream->goes_out = true;
  stream->socket = {socket, 0};
  stream->errors = -1;
  stream->credit = stream->room = channel::kConnectionWindow;
  stream->next = agent.streams;
  agent.streams = stream;
  ++agent.stream_count;
  ++agent.egress.streams;
  ++agent.egress.connections;
  update_events(*stream);
}

void take_data(uint32_t number, const char* data, size_t size) {
  Stream* const stream = find_stream(number);
  if (!stream) return;
  if (size > stream->room || stream->input_ended) give_up("more comes of a stream than there is room for");
  stream->room -= static_cast<uint32_t>(size);
  if (stream->input_closed) return give_credit(*stream, size);
  stream->input.append(data, size);
  if (!stream->connecting) write_input(*stream);
  update_events(*stream);
}

void take_credit(uint32_t number, uint32_t bytes) {
  Stream* const stream = find_stream(number);
  if (!stream) return;
  if (bytes > channel::kMaxWindow - stream->credit) give_up("credit makes no sense");
  stream->credit += bytes;
  update_events(*stream);
}

void take_end(uint32_t number) {
  Stream* const stream = find_stream(number);
  if (!stream) return;
  stream->input_ended = true;
  if (!stream->connecting) write_input(*stream);
  update_events(*stream);
}

void abandon_stream(uint32_t number) {
  if (Stream* const stream = find_stream(number)) abandon(*stream);
}

// To the keeper its client is still there: with its end it would end the command.
void abandon_streams() {
  const bool keep_commands = agent.state == channel::AgentState::Quiesced && agent.configured;
  for (Stream* stream = agent.streams; stream; stream = stream->next) {
    stream->unheard |= keep_commands && stream->service == channel::Service::Keeper && stream->socket.fd >= 0;
    if (!stream->unheard) {
      abandon(*stream);
      continue;
    }
    stream->readable = false;
    stream->input.clear();
  }
  // Those whose processes are still to be reaped answer to nobody.
  for (Stream* stream = agent.streams; stream; stream = stream->next) stream->number = 0;
}

void rest_streams() {
  for (Stream* stream = agent.streams; stream; stream = stream->next) watch(stream->socket, 0, nullptr);
}

void wake_streams() {
  for (Stream* stream = agent.streams; stream; stream = stream->next) update_events(*stream);
}

void on_stream(Stream& stream, uint32_t events) {
  if (stream.socket.fd < 0 || agent.state == channel::AgentState::Quiesced) return;
  if (stream.unheard) return drop_output(stream);
  if (stream.connecting) {
    const long done = finish_connection(stream);
    if (done < 0) {
      static constexpr char kMessage[] = "connect to the port";
      send_closed(stream.number, done, kMessage, sizeof kMessage - 1);
      finish(stream);
      stream.number = 0;
      return;
    }
    // Another socket, of which these events say nothing.
    if (stream.connecting) return update_events(stream);
  }
  if (events & EPOLLOUT) write_input(stream);
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) stream.readable = true;
  update_events(stream);
}

bool next_data() {
  // Each in its turn, from the one after the last on.
  Stream* first = agent.streams;
  for (Stream* stream = agent.streams; stream; stream = stream->next)
    if (stream->number == agent.turn && stream->next) first = stream->next;
  Stream* stream = first;
  for (uint32_t tried = 0; stream && tried < agent.stream_count; ++tried) {
    if (stream->readable && stream->credit && !stream->output_ended) {
      const bool taken = take_piece(*stream);
      update_events(*stream);
      if (taken) {
        agent.turn = stream->number;
        return true;
      }
    }
    stream = stream->next ? stream->next : agent.streams;
  }
  // An end that was met on the way stands among the control frames.
  if (!agent.control.size) return false;
  const Buffer spare = agent.current;
  agent.current = agent.control;
  agent.control = spare;
  agent.control.size = 0;
  return true;
}

bool reap_service(int pid, int status) {
  for (Stream* stream = agent.streams; stream; stream = stream->next) {
    if (stream->child != pid) continue;
    stream->child = 0;
    stream->status = status;
    return true;
  }
  return false;
}

void sweep_streams() {
  for (Stream** at = &agent.streams; *at;) {
    Stream* const stream = *at;
    const bool served = !stream->child && stream->output_ended;
    // A connection that was closed on both sides, or a process that has ended and was read out.
    const bool over = served && (stream->input_closed || stream->errors >= 0);
    if (!over) {
      at = &stream->next;
      continue;
    }
    *at = stream->next;
    --agent.stream_count;
    if (stream->goes_out) --agent.egress.streams;
    if (stream->goes_out && stream->socket.fd >= 0) --agent.egress.connections;
    close_socket(*stream);
    stream->input.clear();
    if (stream->number) {
      tell_end(*stream);
    } else if (stream->errors >= 0) {
      close_fd(stream->errors);
    }
    destroy(stream);
  }
}

}  // namespace dsec::guest
