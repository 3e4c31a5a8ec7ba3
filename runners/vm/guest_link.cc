#include "runners/vm/guest_link.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100};

std::string random_bytes() {
  std::string bytes(64, '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (got < 0 && errno != EINTR) throw system_error("get random bytes");
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::uint64_t wall_clock_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

// Of the guest's own text, which may be anything.
std::string text_of(wire::Reader::String text) {
  return quote(std::string_view(text.data, std::min<std::size_t>(text.size, 300)));
}

}  // namespace

void GuestLink::wait(short events, Deadline until) const {
  pollfd ready{channel_.get(), events, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
  if (left.count() <= 0) throw failure("its guest says nothing in time");
  if (::poll(&ready, 1, static_cast<int>(std::min(left, kLook).count())) == 0) alive_();
}

void GuestLink::send(channel::Type type, std::string_view text, Deadline until) {
  const channel::ChannelHeader header{static_cast<std::uint32_t>(text.size()), type, 0, 0};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += text;
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t sent = ::send(channel_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) done += static_cast<std::size_t>(sent);
    if (sent >= 0 || errno == EINTR) continue;
    const int error = errno;
    // Its end may say more.
    alive_();
    if (error != EAGAIN) throw system_error("write to its guest", error);
    wait(POLLOUT, until);
  }
}

GuestLink::Answer GuestLink::receive(Deadline until) {
  for (;;) {
    channel::ChannelHeader header{};
    const auto parsed = channel::parse_frame(received_.data(), received_.size(), header);
    if (parsed == channel::Parsed::Garbage || (parsed == channel::Parsed::Frame && header.stream != 0))
      throw failure("its guest does not speak the protocol of the channel");
    if (parsed == channel::Parsed::Frame) {
      Answer answer{header.type, received_.substr(sizeof header, header.length)};
      received_.erase(0, sizeof header + header.length);
      return answer;
    }
    char chunk[16384];
    const ssize_t got = ::recv(channel_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (got > 0) received_.append(chunk, static_cast<std::size_t>(got));
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got < 0 && errno == EAGAIN) {
      wait(POLLIN, until);
      continue;
    }
    const int error = got < 0 ? errno : 0;
    alive_();
    throw error ? system_error("read from its guest", error) : failure("its guest closed the channel");
  }
}

GuestLink::Answer GuestLink::ask(channel::Type type, std::string_view text, channel::Type expected, Deadline until) {
  send(type, text, until);
  Answer answer = receive(until);
  if (answer.type == expected) return answer;
  wire::Reader reader(answer.text.data(), answer.text.size());
  if (answer.type == channel::Type::Failed) {
    const auto error = static_cast<int>(reader.u32());
    const auto step = reader.str(), object = reader.str();
    std::string message = "its guest cannot " + text_of(step);
    if (object.size) message += " " + text_of(object);
    throw failure(error ? message + ": " + errno_text(error) : message);
  }
  if (answer.type == channel::Type::Ended) throw failure("its guest ended: " + text_of(reader.str()));
  throw failure("its guest answers what was not asked");
}

GuestWelcome GuestLink::hello(Deadline until) {
  const std::string text =
      FrameText().u64(channel::kMagic).u32(channel::kVersion).u64(wall_clock_us()).str(random_bytes()).text();
  const Answer answer = ask(channel::Type::Hello, text, channel::Type::Welcome, until);
  wire::Reader reader(answer.text.data(), answer.text.size());
  const std::uint64_t magic = reader.u64();
  const std::uint32_t version = reader.u32();
  GuestWelcome welcome;
  welcome.since_boot = std::chrono::microseconds(reader.u64());
  welcome.memory = reader.u64();
  const auto kernel = reader.str();
  welcome.kernel = {kernel.data, kernel.size};
  welcome.state = static_cast<channel::AgentState>(reader.u32());
  if (!reader.ok() || magic != channel::kMagic) throw failure("its guest has no agent of dsec");
  if (version != channel::kVersion)
    throw failure("the agent of its guest speaks version " + std::to_string(version) + ", and this dsec " +
                  std::to_string(channel::kVersion))
        .hint("dsec vm kernel import makes its initramfs anew");
  return welcome;
}

std::chrono::microseconds GuestLink::configure(std::string_view configuration, Deadline until) {
  const Answer answer = ask(channel::Type::Configure, configuration, channel::Type::Ready, until);
  return std::chrono::microseconds(wire::Reader(answer.text.data(), answer.text.size()).u64());
}

void GuestLink::quiesce(Deadline until) { ask(channel::Type::Quiesce, "", channel::Type::Done, until); }

void GuestLink::rewrite(const std::string& path, std::string_view content, Deadline until) {
  ask(channel::Type::Rewrite, FrameText().str(path).str(content).text(), channel::Type::Done, until);
}

void GuestLink::renew(std::string_view machine_id, const std::string& hostname,
                      const std::vector<std::string>& environment, Deadline until) {
  const std::string text = FrameText().str(machine_id).str(hostname).str(random_bytes()).strs(environment).text();
  ask(channel::Type::Renew, text, channel::Type::Done, until);
}

UniqueFd GuestLink::release() {
  if (!received_.empty()) throw failure("its guest says what was not asked");
  return std::move(channel_);
}

}  // namespace dsec::runners
