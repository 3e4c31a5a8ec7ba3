#include "layers/disk/disk_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/resident.h"
#include "layers/disk/disk_protocol.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kPiece = 1 << 20;  // bytes received at a time
// One machine has one connection; the others are of its VMM's attempts to come back, and of people who look.
constexpr std::size_t kMostMachines = 8;
// What a machine makes it say shall not fill the host.
constexpr int kMostLines = 1000;

void log_line(const std::string& what) {
  static int lines = 0;
  if (++lines <= kMostLines) std::cerr << "dsec-disk: " + what + "\n" << std::flush;
}

UniqueFd make_event() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw system_error("make an eventfd");
  return event;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

DiskServer::DiskServer(DiskStack& disk, UniqueFd control, UniqueFd nbd)
    : disk_(disk),
      control_(std::move(control)),
      nbd_(std::move(nbd)),
      compacted_(make_event()),
      buffer_(kPiece, '\0') {}

DiskServer::~DiskServer() {
  if (compactor_.joinable()) compactor_.join();
}

void DiskServer::run() {
  while (!asked_to_end_) {
    begin_compaction();
    std::vector<pollfd> fds = {{control_.get(), POLLIN, 0},
                               {machines_.size() < kMostMachines ? nbd_.get() : -1, POLLIN, 0},
                               {compacted_.get(), POLLIN, 0}};
    for (const UniqueFd& client : clients_) fds.push_back({client.get(), POLLIN, 0});
    bool idle = true;
    for (const Machine& machine : machines_) {
      const bool in = machine.connection.wants_input(), out = !machine.connection.output().empty();
      fds.push_back({machine.socket.get(), static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0)), 0});
      idle = idle && !has_work(machine);
    }
    if (::poll(fds.data(), fds.size(), idle ? -1 : 0) < 0) {
      if (errno == EINTR) continue;
      throw system_error("poll");
    }
    auto found = fds.begin() + 3;
    for (auto client = clients_.begin(); client != clients_.end(); ++found)
      client = !found->revents || attend_control(client->get()) ? std::next(client) : clients_.erase(client);
    for (auto machine = machines_.begin(); machine != machines_.end(); ++found)
      machine = (!found->revents && !has_work(*machine)) || attend_machine(*machine) ? std::next(machine)
                                                                                     : machines_.erase(machine);
    if (fds[0].revents) accept_control();
    if (fds[1].revents) accept_machine();
    if (fds[2].revents) end_compaction();
    // Whoever was told of layers may have their files until he goes.
    if (clients_.empty()) disk_.forget_replaced();
  }
  disk_.flush();
}

void DiskServer::accept_control() {
  UniqueFd client(::accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client) return;
  const timeval patience = {2, 0};
  ::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  clients_.push_back(std::move(client));
}

void DiskServer::accept_machine() {
  UniqueFd socket(::accept4(nbd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) machines_.push_back({std::move(socket), NbdConnection(disk_, log_line)});
}

bool DiskServer::attend_control(int socket) {
  Json answer;
  try {
    const std::optional<std::string> text = receive_message(socket);
    if (!text) return false;
    const std::string op = json_string(parse_json(*text, "request"), "op");
    if (op == "seal")
      disk_.seal();
    else if (op == "end")
      asked_to_end_ = true;
    else if (op != "status")
      throw usage_error("unknown request " + quote(op));
    answer = {{"layers", disk_.facts().layers}, {"size", disk_.size()}, {"machines", machines_.size()}};
    if (!compaction_ && !compaction_error_.empty()) answer["problem"] = compaction_error_;
  } catch (const Error& error) {
    answer = {{"error", error.message()}};
  }
  answer["protocol"] = kDiskProtocol;
  // Its answer is the end of the connection, when all is flushed.
  if (asked_to_end_) return true;
  try {
    send_message(socket, canonical_json(answer));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// That waits for nothing but its turn.
bool DiskServer::has_work(const Machine& machine) {
  return machine.connection.more() && machine.connection.output().empty();
}

bool DiskServer::attend_machine(Machine& machine) {
  NbdConnection& connection = machine.connection;
  if (has_work(machine)) {
    connection.resume();
  } else if (connection.wants_input()) {
    const ssize_t got = ::recv(machine.socket.get(), buffer_.data(), buffer_.size(), 0);
    if (got == 0 || (got < 0 && !would_block())) return false;
    if (got > 0) connection.receive(std::string_view(buffer_).substr(0, static_cast<std::size_t>(got)));
  }
  while (!connection.output().empty()) {
    const std::string_view out = connection.output();
    const ssize_t put = ::send(machine.socket.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (put < 0) return would_block();
    connection.sent(static_cast<std::size_t>(put));
  }
  return !connection.ended();
}

void DiskServer::begin_compaction() {
  // Once for each layer that came: what failed would fail again.
  if (compaction_ || disk_.facts().layers.size() == layers_looked_at_) return;
  layers_looked_at_ = disk_.facts().layers.size();
  compaction_ = disk_.next_compaction();
  if (!compaction_) return;
  compactor_ = std::thread([this] {
    compaction_error_.clear();
    try {
      compaction_->run();
    } catch (const std::exception& error) {
      compaction_error_ = error.what();
    }
    const std::uint64_t one = 1;
    if (::write(compacted_.get(), &one, sizeof one) < 0) ::_exit(1);
  });
}

void DiskServer::end_compaction() {
  std::uint64_t count = 0;
  if (::read(compacted_.get(), &count, sizeof count) < 0) return;
  compactor_.join();
  const Compaction compaction = *std::move(compaction_);
  compaction_.reset();
  try {
    if (!compaction_error_.empty()) throw failure(compaction_error_);
    disk_.accept(compaction);
  } catch (const Error& error) {
    compaction_error_ = error.message();
    log_line("the layers of the disk stay as many as they are: " + compaction_error_);
  }
}

}  // namespace dsec::layers
