#include "runners/egress/gateway/gateway.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/received_descriptors.h"

namespace dsec::egress {
namespace {

// So that sandboxes that follow each other need no new gateway each.
constexpr std::chrono::milliseconds kLinger{2000};

std::vector<Endpoint> endpoints(const std::vector<std::string>& texts) {
  std::vector<Endpoint> found;
  for (const std::string& text : texts) {
    const auto endpoint = parse_endpoint(text, 53);
    if (!endpoint) throw usage_error(quote(text) + " is no name server");
    found.push_back(*endpoint);
  }
  return found;
}

}  // namespace

struct Gateway::Client {
  UniqueFd socket;
  std::unique_ptr<Watch> watch;
};

Gateway::Gateway(UniqueFd listener, uid_t owner, const std::vector<std::string>& servers, Guard& guard, Kept kept)
    : guard_(guard), listener_(std::move(listener)), owner_(owner), resolver_(loop_, endpoints(servers)) {
  guard_watch_.emplace(loop_, guard_.descriptor(), EPOLLIN, [this](std::uint32_t) { on_guard_gone(); });
  for (auto& [id, descriptors] : kept) restore(id, std::move(descriptors));
  listener_watch_.emplace(loop_, listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
  end_when_idle();
}

Gateway::~Gateway() = default;

void Gateway::run() {
  loop_.run();
  guard_.end();
}

void Gateway::accept() {
  auto client = std::make_unique<Client>();
  client->socket.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client->socket) return;
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (::getsockopt(client->socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != 0 && peer.uid != owner_))
    return;
  Client& added = *clients_.emplace_back(std::move(client));
  idle_.reset();
  added.watch =
      std::make_unique<Watch>(loop_, added.socket.get(), EPOLLIN, [this, &added](std::uint32_t) { serve(added); });
}

void Gateway::serve(Client& client) {
  const auto end = [&] {
    client.watch.reset();
    loop_.later([this, &client] {
      clients_.remove_if([&](const auto& each) { return each.get() == &client; });
      end_when_idle();
    });
  };
  buffer_.resize(kLongestMessage);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kAttachDescriptors)];
  iovec part = {buffer_.data(), buffer_.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(client.socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) return end();
  std::vector<UniqueFd> descriptors = take_descriptors(message);
  Json answer;
  try {
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) throw failure("the request is too long");
    answer =
        handle(parse_json(std::string_view(buffer_).substr(0, static_cast<std::size_t>(got)), "request"), descriptors);
  } catch (const Error& error) {
    answer = {{"error", error.message()}};
  } catch (const std::exception& error) {
    answer = {{"error", error.what()}};
  }
  if (answer.is_null()) return;
  answer["protocol"] = kProtocol;
  const std::string bytes = canonical_json(answer);
  if (::send(client.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) end();
}

Json Gateway::handle(const Json& request, std::vector<UniqueFd>& descriptors) {
  const std::string op = json_string(request, "op");
  if (op == "attach") return attach(request, descriptors);
  if (op == "end") {
    if (!sandboxes_.empty()) return {{"sandboxes", sandboxes_.size()}};
    // Closing all connections without an answer tells that it is done.
    listener_watch_.reset();
    loop_.stop();
    return nullptr;
  }
  const std::string id = json_string(request, "id");
  const auto found = sandboxes_.find(id);
  if (op == "detach") {
    remove(id);
    return Json::object();
  }
  if (found == sandboxes_.end()) return {{"attached", false}};
  if (op == "set") {
    found->second->replace(network_plan_from_json(request.value("plan", Json::object())),
                           request.value("secrets", std::map<std::string, std::string>{}));
    keep(*found->second);
  } else if (op != "show" && op != "has") {
    throw usage_error("unknown request " + quote(op));
  }
  Json report = op == "show" ? found->second->report() : Json::object();
  report["attached"] = true;
  return report;
}

Json Gateway::attach(const Json& request, std::vector<UniqueFd>& descriptors) {
  const std::string id = json_string(request, "id");
  if (descriptors.size() != kAttachDescriptors) throw failure("an attach without its descriptors");
  SandboxState state = sandbox_state_from(request);
  // What an earlier dsec attached gives way: its sockets may have lost their rules.
  sandboxes_.erase(id);
  auto sandbox = std::make_unique<Sandbox>(host_, id, std::move(state), std::move(descriptors), UniqueFd(),
                                           [this, id] { loop_.later([this, id] { remove(id); }); });
  keep(*sandbox);
  Json answer = Json::object();
  if (const std::string ca = sandbox->ca_certificate(); !ca.empty()) answer["ca"] = ca;
  sandboxes_.emplace(id, std::move(sandbox));
  return answer;
}

// The last descriptors are its ledger and its state, as keep() gave them.
void Gateway::restore(const std::string& id, std::vector<UniqueFd> descriptors) {
  try {
    if (descriptors.size() != kAttachDescriptors + 2) throw failure("descriptors are missing");
    const UniqueFd file = std::move(descriptors.back());
    descriptors.pop_back();
    UniqueFd ledger = std::move(descriptors.back());
    descriptors.pop_back();
    if (::lseek(file.get(), 0, SEEK_SET) != 0) throw system_error("read its state");
    SandboxState state = sandbox_state_from(parse_json(read_all(file.get()), "state"));
    sandboxes_.emplace(id,
                       std::make_unique<Sandbox>(host_, id, std::move(state), std::move(descriptors), std::move(ledger),
                                                 [this, id] { loop_.later([this, id] { remove(id); }); }));
  } catch (const std::exception& error) {
    // The next dsec exec attaches it again.
    std::cerr << "dsec-egress: cannot serve sandbox " << id << " any longer: " << error.what() << '\n';
    guard_.drop(id);
  }
}

// In memory, since it has secrets.
void Gateway::keep(Sandbox& sandbox) {
  const UniqueFd file(::memfd_create("sandbox", MFD_CLOEXEC));
  if (!file) throw system_error("make a file in memory");
  write_all(file.get(), canonical_json(sandbox.state()));
  std::vector<int> descriptors;
  for (int which = 0; which < kAttachDescriptors; ++which)
    descriptors.push_back(sandbox.descriptor(static_cast<AttachDescriptor>(which)));
  descriptors.push_back(sandbox.ledger());
  descriptors.push_back(file.get());
  try {
    guard_.keep(sandbox.id(), descriptors);
  } catch (const Error&) {
    // Its end is about to be noticed, and then a new one is told of all.
  }
}

void Gateway::on_guard_gone() {
  guard_watch_.reset();
  try {
    guard_.revive();
  } catch (const Error& error) {
    // Without one all goes on, until this process dies, too.
    std::cerr << "dsec-egress: " << error.message() << '\n';
    return;
  }
  guard_watch_.emplace(loop_, guard_.descriptor(), EPOLLIN, [this](std::uint32_t) { on_guard_gone(); });
  for (const auto& [id, sandbox] : sandboxes_) keep(*sandbox);
}

void Gateway::remove(const std::string& id) {
  if (sandboxes_.erase(id)) {
    try {
      guard_.drop(id);
    } catch (const Error&) {
      // A new guard is told of what is there.
    }
  }
  end_when_idle();
}

void Gateway::end_when_idle() {
  if (!sandboxes_.empty() || !clients_.empty()) return;
  idle_.emplace(loop_, kLinger, [this] {
    // Somebody who has connected in the meantime finds the connection closed, and starts a new gateway.
    if (sandboxes_.empty() && clients_.empty()) loop_.stop();
  });
}

}  // namespace dsec::egress
