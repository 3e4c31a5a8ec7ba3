#include "runners/egress/egress.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/resident.h"
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

void check_secret(const HeaderSecret& secret) {
  attempt("network: inject: " + secret.host, [&] { read_secret(secret.secret); });
}

// What the gateway has been told already may be out of the caller's reach.
void check_new_secrets(const NetworkPlan& plan, const std::optional<NetworkPlan>& before) {
  std::set<std::string> known;
  if (before) for_each_secret(*before, [&](const HeaderSecret& secret) { known.insert(secret.secret); });
  for_each_secret(plan, [&](const HeaderSecret& secret) {
    if (!known.contains(secret.secret)) check_secret(secret);
  });
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

std::string read_authority(const fs::path& directory) {
  const UniqueFd file(::open((directory / kCaFile).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return "";
  if (!file) throw system_error("open " + quote((directory / kCaFile).native()));
  return read_all(file.get());
}

std::optional<NetworkPlan> read_network_plan(const fs::path& directory) {
  const fs::path file = directory / kNetworkFile;
  const UniqueFd open(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!open && errno == ENOENT) return std::nullopt;
  if (!open) throw system_error("open " + quote(file.native()));
  return network_plan_from_json(parse_json(read_all(open.get()), file.native()));
}

void Egress::check(const NetworkPlan& plan) const { for_each_secret(plan, check_secret); }

Resident Egress::gateway() const {
  return {.title = "egress gateway",
          .program = "dsec-egress",
          .run = run_,
          .socket = kSocketName,
          .lock = kLockName,
          .log = kMessages,
          .longest_message = kLongestMessage};
}

UniqueFd Egress::start_gateway() const {
  ResidentStart start;
  start.arguments = {run_.parent_path().native()};
  for (const std::string& server : Config::load().resolvers) start.arguments.push_back(server);
  for (const char* name : {"SSL_CERT_FILE", "SSL_CERT_DIR"})
    if (const char* value = std::getenv(name)) start.environment.push_back(std::string(name) + "=" + value);
  const UniqueFd procs = open_procs_();
  start.procs = procs.get();
  return start_resident(gateway(), start);
}

Json Egress::ask(const Json& request, const std::vector<int>& descriptors) const {
  const std::string text = canonical_json(request);
  if (text.size() > kLongestMessage) throw usage_error("the network policy is too long");
  // A gateway that has just ended for lack of work closes what it did not answer.
  for (int attempt = 1;; ++attempt) {
    UniqueFd socket = connect_resident(gateway());
    if (!socket) socket = start_gateway();
    try {
      send_message(socket.get(), text, descriptors);
    } catch (const Error& error) {
      if (attempt == kAttempts) throw Error(error).context("cannot ask the egress gateway");
      continue;
    }
    const std::optional<std::string> answer = receive_message(socket.get());
    if (!answer) {
      if (attempt < kAttempts) continue;
      throw failure("the egress gateway broke off");
    }
    Json json = parse_json(*answer, "the egress gateway's answer");
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
  check_new_secrets(plan, read_network_plan(directory));
  // Of a sandbox that has ended the plan stays what it was.
  const UniqueFd init = open_init();
  write_plan(directory, plan);
  const Json answer = ask({{"op", "set"},
                           {"id", directory.filename().native()},
                           {"plan", to_json(plan)},
                           {"secrets", readable_secrets(plan)}});
  if (!answer.value("attached", false)) attach_plan(directory, plan, init.get());
}

void Egress::release() const {
  const FileLock lock = FileLock::try_lock(run_ / kLockName, FileLock::Mode::Exclusive);
  if (!lock) return;
  if (const UniqueFd socket = connect_resident(gateway())) {
    // Its answer is its end, or that it is in use after all.
    send_message(socket.get(), canonical_json({{"op", "end"}}));
    char answer[256];
    if (::recv(socket.get(), answer, sizeof answer, 0) != 0) return;
  }
  for (const char* name : {kSocketName, kMessages}) ::unlink((run_ / name).c_str());
}

engine::NetworkReport Egress::report(const fs::path& directory) const {
  engine::NetworkReport report;
  report.plan = read_network_plan(directory);
  if (!report.plan) return report;
  const UniqueFd socket = connect_resident(gateway());
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
