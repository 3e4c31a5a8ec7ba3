#include "registry/directory/publisher_lease.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"
#include "registry/directory/new_file.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

using std::chrono::system_clock;

constexpr int kSchema = 1;
constexpr std::uint64_t kLargest = 16 << 20;
// Long enough for clocks of hosts that differ and for one large blob; a dead publisher on another host keeps what it
// named for as long.
constexpr std::chrono::seconds kLifetime{3600}, kRenewal{600};

// Pids mean something only within one pid namespace.
std::string pid_namespace() {
  struct stat status;
  return ::stat("/proc/self/ns/pid", &status) == 0 ? std::to_string(status.st_ino) : "";
}

std::string file_of(const std::string& publisher) { return std::string(kLeases) + "/" + publisher + ".json"; }

std::uint64_t seconds(system_clock::time_point time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count());
}

FoundLease parse(const std::string& publisher, const std::string& text) {
  const Json json = parse_json(text, file_of(publisher));
  FoundLease lease;
  lease.publisher = publisher;
  const engine::ProcessIdentity self = engine::ProcessIdentity::self();
  const engine::ProcessIdentity owner{json_string(json, "boot_id"), static_cast<pid_t>(json_u64(json, "pid")),
                                      json_u64(json, "start_ticks")};
  if (owner.boot_id == self.boot_id && json_string(json, "pid_namespace") == pid_namespace())
    lease.live = owner.alive();
  else
    lease.live = json_u64(json, "expires") > seconds(system_clock::now());
  const auto blobs = json.find("blobs");
  if (blobs == json.end() || !blobs->is_array()) throw usage_error("'blobs' is no list");
  for (const Json& blob : *blobs) {
    if (!blob.is_string()) throw usage_error("'blobs' holds something else than digests");
    lease.blobs.insert(Digest::parse(blob.get<std::string>()));
  }
  return lease;
}

}  // namespace

PublisherLease::PublisherLease(const RegistryRoot& root, const std::string& host_id, std::set<Digest> blobs)
    : root_(root), publisher_(host_id + "-" + engine::random_id(16)), blobs_(std::move(blobs)) {
  write();
}

PublisherLease::~PublisherLease() {
  try {
    root_.remove(file_of(publisher_));
  } catch (const Error&) {
    // It runs out by itself.
  }
}

void PublisherLease::renew() {
  if (std::chrono::steady_clock::now() - written_ > kRenewal) write();
}

void PublisherLease::write() {
  attempt("cannot write a lease in the registry", [&] {
    const engine::ProcessIdentity self = engine::ProcessIdentity::self();
    Json json = {{"schema", kSchema},
                 {"boot_id", self.boot_id},
                 {"pid", self.pid},
                 {"start_ticks", self.start_ticks},
                 {"pid_namespace", pid_namespace()},
                 {"expires", seconds(system_clock::now() + kLifetime)},
                 {"blobs", Json::array()}};
    for (const Digest& blob : blobs_) json["blobs"].push_back(blob.hex());
    const std::string name = file_of(publisher_);
    const UniqueFd parent = root_.make_parent(name);
    NewFile file(parent.get(), publisher_);
    write_all(file.fd(), canonical_json(json) + "\n");
    file.replace(last_part(name));
    written_ = std::chrono::steady_clock::now();
  });
}

std::vector<FoundLease> find_leases(const RegistryRoot& root) {
  std::vector<FoundLease> leases;
  for (const std::string& file : root.list(std::string(kLeases))) {
    constexpr std::string_view kSuffix = ".json";
    if (file.starts_with(".tmp-") || !file.ends_with(kSuffix)) continue;
    const std::string publisher = file.substr(0, file.size() - kSuffix.size());
    try {
      if (const auto text = root.read_file(file_of(publisher), kLargest)) leases.push_back(parse(publisher, *text));
    } catch (const Error&) {
      const auto status = root.look(file_of(publisher));
      if (!status) continue;
      const auto written = system_clock::from_time_t(status->st_mtime);
      leases.push_back({publisher, system_clock::now() - written < kLifetime, {}});
    }
  }
  return leases;
}

std::string publisher_of(std::string_view file) {
  constexpr std::string_view kPrefix = ".tmp-";
  if (!file.starts_with(kPrefix)) return {};
  file.remove_prefix(kPrefix.size());
  const std::size_t last = file.rfind('-');
  return last == std::string_view::npos ? std::string() : std::string(file.substr(0, last));
}

}  // namespace dsec::registry
