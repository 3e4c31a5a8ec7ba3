#include "runners/egress/egress.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/base/child_process.h"
#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/network_log.h"
#include "runners/egress/namespace.h"
#include "runners/egress/protocol.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using namespace dsec::egress;
namespace {

constexpr std::uint64_t kLongestSecret = 64 << 10;
constexpr int kAttempts = 3;
constexpr char kMessages[] = "egress.log";

fs::path gateway_program() {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& candidate : {here / "dsec-egress", here / "../libexec/dsec/dsec-egress"})
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  throw failure("dsec-egress is neither beside the program in " + quote(here.native()) + " nor in ../libexec/dsec")
      .hint("install dsec with its libexec directory");
}

std::string read_secret(const std::string& place) {
  std::string value;
  if (place.starts_with("env:")) {
    const char* const found = std::getenv(place.c_str() + 4);
    if (!found)
      throw usage_error("the environment has no " + quote(place.substr(4))).hint("export it, or use file:/PATH");
    value = found;
  } else {
    value = read_file(place.substr(5), kLongestSecret);
    while (!value.empty() && (value.back() == '\n' || value.back() == '\r')) value.pop_back();
  }
  if (value.empty()) throw usage_error("the secret " + quote(place) + " is empty");
  if (std::any_of(value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }))
    throw usage_error("the secret " + quote(place) + " contains control characters, which no header can carry");
  return value;
}

template <typename Action>
void for_each_secret(const NetworkPlan& plan, Action&& action) {
  for (const HeaderSecret& secret : plan.base.inject) action(secret);
  for (const auto& [phase, policy] : plan.phases)
    for (const HeaderSecret& secret : policy.inject) action(secret);
}

// Those that can be read here; the gateway keeps what it was told before.
std::map<std::string, std::string> readable_secrets(const NetworkPlan& plan) {
  std::map<std::string, std::string> secrets;
  for_each_secret(plan, [&](const HeaderSecret& secret) {
    try {
      secrets[secret.secret] = read_secret(secret.secret);
    } catch (const Error&) {
      // Requests for its host are answered with the reason.
    }
  });
  return secrets;
}

// By the directory's descriptor, since the path of a socket may have 107 bytes only.
sockaddr_un socket_address(const UniqueFd& directory) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory.get(), kSocketName);
  return address;
}

UniqueFd seqpacket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("open a socket");
  const int room = 2 * static_cast<int>(kLongestMessage);
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) != 0)
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  const timeval patience = {10, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

void send_request(int socket, const std::string& text, const std::vector<int>& descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kAttachDescriptors)] = {};
  iovec part = {const_cast<char*>(text.data()), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) throw system_error("send to the egress gateway");
}

UniqueFd open_log(const fs::path& directory) {
  return open_file(directory / engine::kNetworkLog, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
}

void write_plan(const fs::path& directory, const NetworkPlan& plan) {
  const fs::path temporary = directory / (std::string(".tmp-") + kNetworkFile);
  {
    const UniqueFd file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    write_all(file.get(), canonical_json(to_json(plan)) + "\n");
  }
  // Not made durable, like the lease: after a power cut there is no sandbox that it could be of.
  if (::rename(temporary.c_str(), (directory / kNetworkFile).c_str()) != 0)
    throw system_error("rename " + quote(temporary.native()));
}

}  // namespace

std::string egress_resolv_conf() {
  return std::string("nameserver ") + kGatewayV4 + "\noptions timeout:5 attempts:2\n";
}

std::vector<std::string> egress_environment(const std::string& hostname, const NetworkPlan& plan) {
  const std::string proxy = std::string("http://") + kGatewayV4 + ":" + std::to_string(kProxyPort);
  const std::string none = "localhost,127.0.0.1,::1," + hostname;
  std::vector<std::string> env;
  for (const char* name : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"})
    env.push_back(std::string(name) + "=" + proxy);
  for (const char* name : {"no_proxy", "NO_PROXY"}) env.push_back(std::string(name) + "=" + none);
  if (plan.intercept_tls)
    for (const char* name :
         {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE"})
      env.push_back(std::string(name) + "=" + kCaInside);
  return env;
}

std::optional<NetworkPlan> read_network_plan(const fs::path& directory) {
  const fs::path file = directory / kNetworkFile;
  const UniqueFd open(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!open && errno == ENOENT) return std::nullopt;
  if (!open) throw system_error("open " + quote(file.native()));
  return network_plan_from_json(parse_json(read_all(open.get()), file.native()));
}

void Egress::check(const NetworkPlan& plan) const {
  for_each_secret(plan, [](const HeaderSecret& secret) {
    attempt("network: inject: " + secret.host, [&] { read_secret(secret.secret); });
  });
}

UniqueFd Egress::connect() const {
  const UniqueFd directory = open_file(run_, O_PATH | O_DIRECTORY);
  const sockaddr_un address = socket_address(directory);
  UniqueFd socket = seqpacket();
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
  if (errno == ENOENT || errno == ECONNREFUSED) return {};
  throw system_error("connect to the egress gateway");
}

UniqueFd Egress::start_gateway() const {
  const FileLock lock(run_ / kLockName, FileLock::Mode::Exclusive);
  if (UniqueFd socket = connect()) return socket;
  const UniqueFd directory = open_file(run_, O_PATH | O_DIRECTORY);
  const sockaddr_un address = socket_address(directory);
  const UniqueFd listener = seqpacket();
  ::unlink((run_ / kSocketName).c_str());
  const mode_t before = ::umask(0177);
  const int bound = ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::umask(before);
  if (bound != 0 || ::listen(listener.get(), 1024) != 0) throw system_error("listen for the egress gateway");

  const fs::path log = run_ / kMessages;
  const UniqueFd null = open_file("/dev/null", O_RDWR), messages = open_file(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const UniqueFd procs = open_procs_();
  SpawnOptions options;
  options.argv = {gateway_program().native(), run_.parent_path().native()};
  for (const std::string& server : Config::load().resolvers) options.argv.push_back(server);
  options.environment.emplace();
  for (const char* name : {"SSL_CERT_FILE", "SSL_CERT_DIR"})
    if (const char* value = std::getenv(name)) options.environment->push_back(std::string(name) + "=" + value);
  options.descriptors = {{null.get(), 1}, {messages.get(), 2}, {listener.get(), 3}, {procs.get(), 4}};
  options.kill_with_parent = false;
  ChildProcess gateway = ChildProcess::spawn(options);
  if (const ExitStatus status = gateway.wait(); !status.ok()) {
    std::string said = read_file(log, 4096);
    while (!said.empty() && said.back() == '\n') said.pop_back();
    throw failure("the egress gateway did not start: " + (said.empty() ? status.str() : said));
  }
  UniqueFd socket = connect();
  if (!socket) throw failure("the egress gateway ended at once").hint("its last words are in " + quote(log.native()));
  return socket;
}

Json Egress::ask(const Json& request, const std::vector<int>& descriptors) const {
  const std::string text = canonical_json(request);
  if (text.size() > kLongestMessage) throw usage_error("the network policy is too long");
  // A gateway that has just ended for lack of work closes what it did not answer.
  for (int attempt = 1;; ++attempt) {
    UniqueFd socket = connect();
    if (!socket) socket = start_gateway();
    try {
      send_request(socket.get(), text, descriptors);
    } catch (const Error&) {
      if (attempt == kAttempts) throw;
      continue;
    }
    const ssize_t length = ::recv(socket.get(), nullptr, 0, MSG_PEEK | MSG_TRUNC);
    std::string answer(length > 0 ? static_cast<std::size_t>(length) : 1, '\0');
    const ssize_t got = length < 0 ? length : ::recv(socket.get(), answer.data(), answer.size(), 0);
    if (got <= 0) {
      if (attempt < kAttempts && (got == 0 || errno == ECONNRESET)) continue;
      if (got == 0) throw failure("the egress gateway broke off");
      throw system_error("wait for the egress gateway");
    }
    answer.resize(static_cast<std::size_t>(got));
    Json json = parse_json(answer, "the egress gateway's answer");
    if (json_u64(json, "protocol") != kProtocol)
      throw failure("the egress gateway is of another version of dsec")
          .hint("it ends with the last sandbox that uses it");
    if (json.contains("error")) throw failure(json_string(json, "error"));
    return json;
  }
}

void Egress::attach_plan(const fs::path& directory, const NetworkPlan& plan, int pidfd) const {
  const EgressSockets sockets = open_egress(pidfd);
  const UniqueFd log = open_log(directory);
  int descriptors[kAttachDescriptors];
  descriptors[kTcpListener] = sockets.tcp.get();
  descriptors[kUdpSocket] = sockets.udp.get();
  descriptors[kRawV4] = sockets.raw4.get();
  descriptors[kRawV6] = sockets.raw6.get();
  descriptors[kInitPidfd] = pidfd;
  descriptors[kLogFile] = log.get();
  const Json answer = ask({{"op", "attach"},
                           {"id", directory.filename().native()},
                           {"plan", to_json(plan)},
                           {"secrets", readable_secrets(plan)}},
                          {std::begin(descriptors), std::end(descriptors)});
  if (!plan.intercept_tls) return;
  // In place: it is mounted in the sandbox.
  const UniqueFd file = open_file(directory / kCaFile, O_WRONLY | O_TRUNC | O_NOFOLLOW);
  write_all(file.get(), json_string(answer, "ca"));
}

void Egress::attach(const fs::path& directory, const fs::path& trajectory, const NetworkPlan& plan, int pidfd) const {
  write_plan(directory, plan);
  if (!trajectory.empty()) {
    open_log(directory);
    const fs::path log = directory / engine::kNetworkLog, kept = trajectory / engine::kNetworkLog;
    if (::link(log.c_str(), kept.c_str()) != 0) throw system_error("link " + quote(kept.native()));
  }
  attach_plan(directory, plan, pidfd);
}

void Egress::ensure(const fs::path& directory, const std::function<UniqueFd()>& open_init) const {
  const std::optional<NetworkPlan> plan = read_network_plan(directory);
  if (!plan) return;
  const Json answer = ask({{"op", "has"}, {"id", directory.filename().native()}});
  if (answer.value("attached", false)) return;
  const UniqueFd init = open_init();
  attempt("the egress gateway was gone, and the sandbox cannot be attached again",
          [&] { attach_plan(directory, *plan, init.get()); });
}

void Egress::set(const fs::path& directory, const NetworkPlan& plan, const std::function<UniqueFd()>& open_init) const {
  write_plan(directory, plan);
  const Json answer = ask({{"op", "set"},
                           {"id", directory.filename().native()},
                           {"plan", to_json(plan)},
                           {"secrets", readable_secrets(plan)}});
  if (!answer.value("attached", false)) attach_plan(directory, plan, open_init().get());
}

void Egress::release() const {
  const FileLock lock = FileLock::try_lock(run_ / kLockName, FileLock::Mode::Exclusive);
  if (!lock) return;
  if (const UniqueFd socket = connect()) {
    // Its answer is its end, or that it is in use after all.
    send_request(socket.get(), canonical_json({{"op", "end"}}), {});
    char answer[256];
    if (::recv(socket.get(), answer, sizeof answer, 0) != 0) return;
  }
  for (const char* name : {kSocketName, kMessages}) ::unlink((run_ / name).c_str());
}

engine::NetworkReport Egress::report(const fs::path& directory) const {
  engine::NetworkReport report;
  report.plan = read_network_plan(directory);
  if (!report.plan) return report;
  const UniqueFd socket = connect();
  if (!socket) return report;
  const Json json = ask({{"op", "show"}, {"id", directory.filename().native()}});
  report.attached = json.value("attached", false);
  if (!report.attached) return report;
  report.connections = json_u64(json, "connections");
  report.sent = json_u64(json, "sent");
  report.received = json_u64(json, "received");
  report.allowed = json_u64(json, "allowed");
  report.denied = json_u64(json, "denied");
  report.names = json_u64(json, "names");
  return report;
}

}  // namespace dsec::runners
