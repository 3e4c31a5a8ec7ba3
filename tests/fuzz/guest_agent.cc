// The agent of a virtual machine, which hears anything on its channel. The test is its kernel: most calls succeed,
// sockets say a little and end, and nothing is done.
#include <asm/unistd.h>
#include <linux/eventpoll.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <set>

#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace channel = dsec::runners::channel;

namespace {

struct MachineEnded {};

constexpr int kPort = 5, kListener = 6, kDatagrams = 7, kFirstFd = 100;

struct Kernel {
  const char* data = nullptr;
  std::size_t left = 0, piece = 1;
  int next_fd = kFirstFd;
  unsigned calls = 0;
  std::set<void*> blocks;  ///< what the agent has of memory
  dsec::guest::Buffer written{};
};
Kernel kernel;

long read_port(char* to, std::size_t size) {
  std::size_t count = kernel.piece < size ? kernel.piece : size;
  if (kernel.left < count) count = kernel.left;
  memcpy(to, kernel.data, count);
  kernel.data += count;
  kernel.left -= count;
  return static_cast<long>(count);
}

// Now something, now nothing yet, in the end nothing any more.
long read_socket(char* to, std::size_t size) {
  const unsigned turn = ++kernel.calls % 7;
  if (turn == 0) return 0;
  if (turn % 2) return -EAGAIN;
  const std::size_t count = size < 1000 ? size : 1000;
  memset(to, 'x', count);
  return static_cast<long>(count);
}

// What the agent says is whole frames.
void check_written() {
  channel::ChannelHeader header;
  std::size_t at = 0;
  while (at < kernel.written.size) {
    const auto parsed = channel::parse_frame(kernel.written.data + at, kernel.written.size - at, header);
    if (parsed == channel::Parsed::Garbage) std::abort();
    if (parsed == channel::Parsed::More) break;
    at += sizeof header + header.length;
  }
  if (at) kernel.written.consume(at);
}

long make_pair(long where) {
  int* const ends = reinterpret_cast<int*>(where);
  ends[0] = kernel.next_fd++;
  ends[1] = kernel.next_fd++;
  return 0;
}

void put_address(void* where) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = static_cast<in_port_t>(kernel.calls % 400);
  memcpy(where, &address, sizeof address);
}

// Now one from the sandbox, now none.
long accept_connection() { return ++kernel.calls % 3 ? -EAGAIN : kernel.next_fd++; }

long receive_datagram(msghdr& message) {
  if (++kernel.calls % 3 == 0) return -EAGAIN;
  put_address(message.msg_name);
  const cmsghdr head = {CMSG_LEN(sizeof(sockaddr_in)), SOL_IP, IP_ORIGDSTADDR};
  memcpy(message.msg_control, &head, sizeof head);
  put_address(static_cast<char*>(message.msg_control) + sizeof head);
  message.msg_controllen = head.cmsg_len;
  return read_socket(static_cast<char*>(message.msg_iov[0].iov_base), kernel.calls * 37 % 65507);
}

long write_port(const char* from, std::size_t size) {
  const std::size_t count = size < 32768 ? size : 32768;
  if (++kernel.calls % 11 == 0) return -EAGAIN;
  kernel.written.append(from, count);
  check_written();
  return static_cast<long>(count);
}

}  // namespace

namespace dsec::runners {

long syscall6(long number, long a, long b, long c, long d, long, long) {
  switch (number) {
    case __NR_read:
      return a == kPort ? read_port(reinterpret_cast<char*>(b), static_cast<std::size_t>(c))
                        : read_socket(reinterpret_cast<char*>(b), static_cast<std::size_t>(c));
    case __NR_write:
      return a == kPort ? write_port(reinterpret_cast<const char*>(b), static_cast<std::size_t>(c)) : c;
    case __NR_sendto:
      return ++kernel.calls % 5 ? (c < 700 ? c : 700) : -EAGAIN;
    case __NR_clone:
      return 4242;
    case __NR_accept4:
      return accept_connection();
    case __NR_getsockname:
      put_address(reinterpret_cast<void*>(b));
      return 0;
    case __NR_recvmsg:
      return a == kDatagrams ? receive_datagram(*reinterpret_cast<msghdr*>(b)) : 0;
    case __NR_openat:
    case __NR_socket:
    case __NR_fcntl:
    case __NR_open_tree:
      return kernel.next_fd++;
    case __NR_pipe2:
      return make_pair(a);
    case __NR_socketpair:
      return make_pair(d);
    default:
      return 0;
  }
}

}  // namespace dsec::runners

namespace dsec::guest {

Agent agent;

void* allocate(size_t size) {
  void* const block = std::malloc(size ? size : 1);
  kernel.blocks.insert(block);
  return block;
}

void release(void* block, size_t) {
  if (!block) return;
  if (!kernel.blocks.erase(block)) std::abort();
  std::free(block);
}

uint64_t monotonic_us() { return 1; }
const char* kernel_argument(const char*) { return nullptr; }
void end_machine() { throw MachineEnded(); }

}  // namespace dsec::guest

namespace {

using namespace dsec::guest;

void serve() {
  for (;;) {
    on_channel(EPOLLIN | EPOLLOUT);
    for (Stream *stream = agent.streams, *next = nullptr; stream; stream = next) {
      next = stream->next;
      on_stream(*stream, EPOLLIN | EPOLLOUT);
    }
    if (may_accept()) accept_connections();
    if (may_take_datagrams()) take_datagrams();
    pump();
    if (++kernel.calls % 13 == 0) reap_service(4242, 0);
    if (agent.state == channel::AgentState::Quiesced) continue;
    sweep_streams();
    end_idle_flows();
    pump();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  memset(static_cast<void*>(&agent), 0, sizeof agent);
  kernel.written = {};
  kernel.calls = 0;
  kernel.next_fd = kFirstFd;
  kernel.data = reinterpret_cast<const char*>(data) + 2;
  kernel.left = size - 2;
  kernel.piece = 1 + data[1];
  agent.configured = data[0] & 1;
  agent.state = agent.configured ? channel::AgentState::Running : channel::AgentState::Waiting;
  agent.port.fd = kPort;
  agent.listener.fd = agent.modules = agent.network = -1;
  agent.disk = data[0] & 2 ? 9 : -1;
  agent.writable = true;
  if (data[0] & 4) agent.egress.listener.fd = kListener, agent.egress.datagrams.fd = kDatagrams;
  try {
    serve();
  } catch (const MachineEnded&) {
  }
  for (void* block : kernel.blocks) std::free(block);
  kernel.blocks.clear();
  return 0;
}
