#include <linux/eventpoll.h>

#include "runners/guest/machine_channel.h"
#include "runners/guest/sockets.h"
#include "runners/guest/sys.h"

// While a machine is saved its guest is quiesced and its VMM stopped, by a process that may die at any moment. So that
// neither stays so, both end with its connection, here, and in no other way.

namespace dsec::guest {
namespace {

// A VMM that cannot go on says so each time.
constexpr unsigned kMostTries = 1000;
constexpr size_t kLongestLine = 64u << 10;

struct Quiescence {
  Client* client;  ///< null: it has gone
  Source monitor;  ///< -1: none, and so nothing is saved
  Buffer words, mark, heard;
  unsigned tries;
} quiescence = {nullptr, {SourceKind::Monitor, -1, 0, nullptr}, {}, {}, {}, 0};

void refuse(Client& client, const char* object, long result) {
  Failure failure = {};
  failure.set("let the machine be saved", object, result);
  send_failure(client, failure);
}

void finish() {
  close_source(quiescence.monitor);
  quiescence.words.clear();
  quiescence.mark.clear();
  quiescence.heard.clear();
}

bool contains(const char* text, size_t size, const char* wanted, size_t wanted_size) {
  for (size_t at = 0; at + wanted_size <= size; ++at)
    if (memcmp(text + at, wanted, wanted_size) == 0) return true;
  return false;
}

// What it would not take at once of so few bytes, it does not read.
void speak() {
  ++quiescence.tries;
  const size_t size = quiescence.words.size;
  if (send_some(quiescence.monitor.fd, quiescence.words.data, size) != static_cast<long>(size)) finish();
}

void take_line(const char* line, size_t size) {
  static constexpr char kError[] = "\"error\"";
  if (!contains(line, size, quiescence.mark.data, quiescence.mark.size)) return;
  const bool refused = contains(line, size, kError, sizeof kError - 1);
  if (!refused || quiescence.tries == kMostTries) return finish();
  speak();
}

}  // namespace

void quiesce_machine(Client& client, wire::Reader& reader) {
  const Text words = reader.str(), mark = reader.str();
  if (!reader.ok()) return;
  if (client.fd_count != 1 || !mark.size) return refuse(client, "without its monitor", -EINVAL);
  if (quiescence.monitor.fd >= 0) return refuse(client, "twice at a time", -EBUSY);
  if (!ask_quiescence(client)) return refuse(client, "as its guest cannot be reached", -ENOTCONN);
  quiescence.client = &client;
  quiescence.monitor.fd = client.fds[0];
  client.fd_count = 0;
  set_nonblocking(quiescence.monitor.fd);
  quiescence.words.append(words.data, words.size);
  quiescence.mark.append(mark.data, mark.size);
  quiescence.tries = 0;
}

void end_quiescence(Client& client) {
  if (&client != quiescence.client) return;
  quiescence.client = nullptr;
  watch(quiescence.monitor, EPOLLIN);
  speak();
  end_silence();
}

bool is_quiesced() { return quiescence.client != nullptr; }

void on_monitor(uint32_t) {
  char chunk[4096];
  const long got = read_fd(quiescence.monitor.fd, chunk, sizeof chunk);
  if (got == -EAGAIN || got == -EINTR) return;
  if (got <= 0) return finish();
  quiescence.heard.append(chunk, static_cast<size_t>(got));
  size_t begin = 0;
  for (size_t at = 0; at < quiescence.heard.size && quiescence.monitor.fd >= 0; ++at) {
    if (quiescence.heard.data[at] != '\n') continue;
    take_line(quiescence.heard.data + begin, at - begin);
    begin = at + 1;
  }
  if (quiescence.monitor.fd < 0) return;
  quiescence.heard.consume(begin);
  if (quiescence.heard.size > kLongestLine) finish();
}

}  // namespace dsec::guest
