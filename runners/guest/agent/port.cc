#include <linux/poll.h>
#include <linux/vm_sockets.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/agent/directory.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr unsigned kPause = 3, kServicePause = 100, kDeviceWait = 10'000, kDefaultWait = 60;
constexpr int kVsock = 40, kStream = 1;  // AF_VSOCK, SOCK_STREAM

// The node of the port with this name, or a negative errno.
long open_port(const char* wanted) {
  char node[64] = "/dev/";
  const bool found = find_entry(-100, "/sys/class/virtio-ports", [&](const char* entry) {
    char path[128] = "/sys/class/virtio-ports/";
    const size_t base = strlen(path), length = strlen(entry);
    if (base + length + sizeof "/name" > sizeof path || length > sizeof node - 6) return false;
    memcpy(path + base, entry, length);
    memcpy(path + base + length, "/name", sizeof "/name");
    Buffer name = {};
    bool same = read_small(-100, path, name);
    if (same && name.size && name.data[name.size - 1] == '\n') name.data[--name.size] = '\0';
    same = same && same_text(name.data, wanted);
    name.clear();
    if (same) memcpy(node + 5, entry, length + 1);
    return same;
  });
  return found ? open_at(-100, node, O_RDWR | O_NONBLOCK | O_CLOEXEC) : -ENODEV;
}

bool open_serial(const char* name, Failure& failure) {
  long fd = -ENODEV;
  // The machine announces its ports some time after their driver was loaded.
  for (unsigned waited = 0; waited < kDeviceWait; waited += kPause, sleep_ms(kPause)) {
    fd = open_port(name);
    if (fd != -ENODEV && fd != -ENOENT) break;
  }
  if (fd < 0) return failure.set("open the virtio-serial port", name, fd), false;
  agent.port.fd = static_cast<int>(fd);
  return true;
}

bool listen_at(const char* text, Failure& failure) {
  uint32_t port = 0;
  for (; *text >= '0' && *text <= '9'; ++text) port = port * 10 + static_cast<uint32_t>(*text - '0');
  if (!load_modules("vsock", failure)) return false;
  sockaddr_vm address = {};
  address.svm_family = kVsock;
  address.svm_cid = VMADDR_CID_ANY;
  address.svm_port = port;
  const long fd = sys(__NR_socket, kVsock, kStream | O_NONBLOCK | O_CLOEXEC, 0);
  if (fd < 0) return failure.set("make a vsock", "", fd), false;
  long done = sys(__NR_bind, fd, &address, sizeof address);
  if (done >= 0) done = sys(__NR_listen, fd, 1);
  if (done < 0) return failure.set("listen at the vsock", "", done), false;
  agent.listener.fd = static_cast<int>(fd);
  return true;
}

unsigned seconds_to_wait() {
  // A system has other things to do, too.
  if (agent.service) return 1u << 30;
  const char* text = kernel_argument("dsec.wait");
  if (!text) return kDefaultWait;
  unsigned seconds = 0;
  for (; *text >= '0' && *text <= '9' && seconds < 100'000; ++text) seconds = seconds * 10 + unsigned(*text - '0');
  return seconds;
}

}  // namespace

bool open_channel(Failure& failure) {
  agent.port.fd = agent.listener.fd = -1;
  const char* const wish = kernel_argument("dsec.channel");
  if (!wish) return open_serial(channel::kPortName, failure);
  if (begins_with(wish, "virtio:")) return open_serial(wish + 7, failure);
  if (begins_with(wish, "vsock:")) return listen_at(wish + 6, failure);
  return failure.set("understand the channel", wish, -EINVAL), false;
}

void accept_channel() {
  sockaddr_vm peer = {};
  int size = sizeof peer;
  const long fd = sys(__NR_accept4, agent.listener.fd, &peer, &size, O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  // Programs of the guest can make such sockets, too, and there is one dsec.
  if (peer.svm_cid != VMADDR_CID_HOST || agent.port.fd >= 0) {
    close_fd(static_cast<int>(fd));
    return;
  }
  agent.port = {static_cast<int>(fd), 0};
  agent.writable = true;
}

// A port whose other end nobody has is always ready, and says nothing but that.
bool await_dsec() {
  const uint64_t latest = monotonic_us() + uint64_t{seconds_to_wait()} * 1'000'000;
  while (monotonic_us() < latest) {
    if (agent.listener.fd >= 0) accept_channel();
    pollfd state = {agent.port.fd, POLLIN, 0};
    if (agent.port.fd >= 0 && sys(__NR_poll, &state, 1, 0) >= 0 && !(state.revents & POLLHUP)) {
      agent.writable = true;
      return true;
    }
    sleep_ms(agent.service ? kServicePause : kPause);
  }
  return false;
}

void lose_channel() {
  // It is started again by whatever has started it.
  if (agent.service && agent.state != channel::AgentState::Quiesced) exit_now(0);
  if (agent.state != channel::AgentState::Quiesced) end_machine();
  // It was saved and comes back elsewhere, or dsec does.
  abandon_streams();
  forget_flows();
  agent.received.clear();
  agent.control.clear();
  agent.current.clear();
  agent.written = 0;
  watch(agent.port, 0, nullptr);
  if (agent.listener.fd >= 0) {
    close_fd(agent.port.fd);
    agent.port.fd = -1;
  }
  if (!await_dsec()) end_machine();
}

}  // namespace dsec::guest
